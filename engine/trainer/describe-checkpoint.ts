import type {
  CheckpointDescription,
  CheckpointGroup,
  CheckpointOptimizer,
  CheckpointParameter,
  CheckpointPart,
} from '../checkpoint/run-content.ts';
import type { RunKernels } from '../checkpoint/stored-checkpoint.ts';
import type { ExperimentConfig, OptimizerConfig } from '../config.ts';
import { type Model, parameterOf } from '../model/model.ts';
import { matchesPattern, matchNames } from '../model/name-pattern.ts';
import { MASK_VERSION } from '../ops/dropout/dropout-mask.ts';
import { LOSS_SCALE } from '../ops/optimizer/loss-scale.ts';
import type { CompiledRun } from '../schedule/compile.ts';
import { optimizerStateNames } from '../schedule/storage.ts';

/** Where a run stands when it is saved. */
export interface SavedPosition {
  /** Optimizer steps done, skipped ones among them. */
  readonly iter: number;
  /** Updates made: Adam's t. */
  readonly updates: number;
  /** Samples of the order that lie behind it. */
  readonly samples: number;
  /** Where dynamic loss scaling stands. */
  readonly scaler: { readonly scale: number; readonly goodSteps: number } | null;
  /** On a device: what a resume there computes with too. */
  readonly kernels?: RunKernels;
}

/** What a checkpoint of a run holds: the names that PyTorch's state_dict lists, as far as checkpoint.filter keeps them. */
export function describeCheckpoint(
  { run, config }: { readonly run: CompiledRun; readonly config: ExperimentConfig },
  { iter, updates, samples, scaler, kernels }: SavedPosition,
): CheckpointDescription {
  const { optimizer } = config;
  const parameters = keptParameters(run, config.checkpoint.filter);
  const own = parameters.filter(({ tiedTo }) => tiedTo === undefined).map(({ name }) => name);
  const common = {
    lr: optimizer.lr,
    weightDecay: optimizer.weightDecay,
    foreach: optimizer.foreach,
    groups: optimizerGroups(optimizer, own),
    step: updates,
  };
  const described: CheckpointOptimizer =
    optimizer.kind === 'sgd'
      ? { ...common, kind: 'sgd', momentum: optimizer.momentum, nesterov: optimizer.nesterov }
      : { ...common, kind: optimizer.kind, betas: optimizer.betas, eps: optimizer.eps };
  const dtype = run.precision.kept === 'f16' ? 'float16' : 'float32';
  const extra = {
    samples,
    ...(scaler && { scaler: scalerState(scaler) }),
    ...(kernels && { kernels: { ...kernels } }),
    ...(config.model.dropout > 0 && { dropoutMasks: MASK_VERSION }),
  };
  return { parameters, optimizer: described, iter, config, dtype, extra };
}

/** As torch.amp.GradScaler's state_dict has it. */
function scalerState({ scale, goodSteps }: { readonly scale: number; readonly goodSteps: number }) {
  const { growth, backoff, growthInterval } = LOSS_SCALE;
  return {
    scale,
    growth_factor: growth,
    backoff_factor: backoff,
    growth_interval: growthInterval,
    _growth_tracker: goodSteps,
  };
}

/** A part of a parameter, as a checkpoint asks for it. */
export interface SavedPart {
  readonly name: string;
  readonly part: CheckpointPart;
}

/** The parts in the order in which a file asks for them: all parameters, then the state of each that is trained. */
export function* partsInOrder(
  { parameters, optimizer }: CheckpointDescription,
  config: OptimizerConfig,
  withState: boolean,
): Generator<SavedPart> {
  const own = parameters.filter(({ tiedTo }) => tiedTo === undefined);
  for (const { name } of own) yield { name, part: 'param' };
  if (!withState || !optimizer || optimizer.step === 0) return;
  for (const { name, frozen } of own)
    for (const part of frozen ? [] : optimizerStateNames(config)) yield { name, part: part as CheckpointPart };
}

/**
 * The param_groups of a run: those that optimizer.groups does not name first, then each of its entries in order. Empty
 * ones are left out.
 */
export function optimizerGroups(optimizer: OptimizerConfig, names: readonly string[]): CheckpointGroup[] {
  const { lr, weightDecay, groups } = optimizer;
  const members = groups.map((): string[] => []);
  const others: string[] = [];
  for (const name of names)
    (members[groups.findIndex(({ match }) => matchesPattern(match, name))] ?? others).push(name);
  const all = [
    { names: others, lr, weightDecay },
    ...groups.map((group, i) => ({
      names: members[i],
      lr: group.lr ?? lr,
      weightDecay: group.weightDecay ?? weightDecay,
    })),
  ];
  return all.filter((group) => group.names.length > 0);
}

/** What PyTorch's state_dict lists: the parameters, and tied ones once more under their second name. */
export function namesInStateDict(run: { readonly model: Model; readonly frozen: ReadonlySet<string> }) {
  const own: CheckpointParameter[] = run.model.parameters.map(({ name, shape }) => {
    return run.frozen.has(name) ? { name, shape, frozen: true } : { name, shape };
  });
  const tied = (run.model.tied ?? []).map((t) => ({ ...t, shape: parameterOf(run.model, t.tiedTo).shape }));
  return [...own, ...tied];
}

/** Names of the parameters that are not trained. */
export function frozenNames(run: CompiledRun): Set<string> {
  return new Set(run.steps[0].groups.flatMap(({ group }) => (group.trainable ? [] : group.parameters)));
}

function keptParameters(run: CompiledRun, filter: readonly string[] | null): CheckpointParameter[] {
  const all = namesInStateDict({ model: run.model, frozen: frozenNames(run) });
  if (filter === null) return all;
  const { matched } = matchNames(
    filter,
    run.model.parameters.map(({ name }) => name),
  );
  return all.filter(({ name, tiedTo }) => matched.has(tiedTo ?? name));
}
