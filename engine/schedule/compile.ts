import type { ExperimentConfig } from '../config.ts';
import { StudioError } from '../errors.ts';
import type { BatchShape, Model } from '../model/model.ts';
import { matchNames } from '../model/name-pattern.ts';
import { normalQuantiles, QUANTILES } from '../ops/init-values/quantiles.ts';
import { withJoinedGradients } from './joined-gradients.ts';
import { withJoinedVisits } from './joined-visits.ts';
import { withLifetimes } from './lifetimes.ts';
import { lower, type TrainingStepPlan } from './lower.ts';
import { countDispatches, type MemoryPlan, type Placement, packMemory, UNIFORM_SLOT_BYTES } from './memory.ts';
import { shardGroup } from './mesh.ts';
import { packingLives } from './packing-lives.ts';
import { type Precision, precisionOf, withPrecision } from './precision.ts';
import type { AdapterProfile } from './profile.ts';
import type { Region, Schedule, Tensor } from './schedule.ts';
import { withSplitSums } from './split-sums.ts';
import type { StoredGroup } from './storage.ts';
import { ddp } from './strategies/ddp.ts';
import { type EvaluationOptions, evaluation } from './strategies/evaluation.ts';
import { fullShard } from './strategies/full-shard.ts';
import { noShard } from './strategies/no-shard.ts';
import { shardGradOp } from './strategies/shard-grad-op.ts';
import type { Gather, StrategyPlan } from './strategies/strategy.ts';
import { type UnitProgram, unitProgram } from './unit-program.ts';
import type { Clipping } from './updates.ts';
import { verify } from './verify.ts';
import { withWaits } from './waits.ts';
import type { WrapPolicy } from './wrap-policy.ts';

/** A step as the executor takes it: what it computes is the schedule's matter. */
export interface ExecutableStep {
  readonly schedule: Schedule;
  /** Where each tensor lies, by id. */
  readonly placements: readonly Placement[];
  readonly uniformOffsetBytes: number;
}

/** Steps over one memory, as the executor takes them. */
export interface ExecutableRun {
  readonly rank: number;
  readonly steps: readonly ExecutableStep[];
  readonly memory: MemoryPlan;
  /** Index in `steps` of the forward-only pass over held-out data; null when the run does not validate. */
  readonly evaluation: number | null;
  readonly init: Pick<InitPlan, 'device'>;
  /** Gathers of a training step that wait for a slot since the budget has no room for all at once; see `compileRun`. */
  readonly slotWaits: number;
  /** Mailbox regions; the same for every step, since only parameters travel. */
  readonly regions: readonly Region[];
}

/** One rank's step for one batch shape, ready to run. */
export interface CompiledStep extends ExecutableStep {
  readonly shape: BatchShape;
  readonly program: UnitProgram;
  readonly groups: readonly StoredGroup[];
  readonly control: Tensor;
}

/** One rank's run: a step for each batch shape, over one memory. */
export interface CompiledRun extends ExecutableRun {
  readonly world: number;
  readonly model: Model;
  readonly precision: Precision;
  /** How many ranks keep the parameters in shards, and this rank's place among them. */
  readonly shards: { readonly count: number; readonly index: number };
  readonly steps: readonly CompiledStep[];
  readonly init: InitPlan;
  /** Hidden layers of large batches are kept for backward, or, where the budget has no room for them, computed again. */
  readonly hidden: 'kept' | 'again';
  /** Whether units are updated in backward: a step that is not finite may then have spoilt the weights when it is found. */
  readonly updatesInBackward: boolean;
}

/** How a rank is filled before its first step. */
export interface InitPlan {
  readonly mode: ExperimentConfig['init']['mode'];
  /** Where the device makes initial values itself: the uniform slot of its dispatches. Null: the host makes or reads them. */
  readonly device: { readonly uniformOffsetBytes: number } | null;
}

/** The table of quantiles that normal values are taken from on the device: state, in mode `device` only. */
export const QUANTILES_TENSOR = 'normal quantiles';

export interface CompileInput {
  readonly config: ExperimentConfig;
  readonly model: Model;
  /** The distinct batch shapes of the run; one for a corpus. */
  readonly shapes: readonly BatchShape[];
  readonly rank: number;
  readonly profile: AdapterProfile;
}

/**
 * Model and configuration to schedule: units, strategy, lowering, lifetimes, memory, waits, then the verifier. Pure; the
 * same input gives the same plan in the browser, the server and the worker. Throws StudioError.
 *
 * With limitAllGathers off units are gathered as early as their lane allows. Where memoryBudgetMiB cannot hold that, the
 * lane gets as many slots as fit, at least the limiter's two; a gather that waits for one counts as an allocation retry.
 * Where it does not fit even so, and would if hidden layers were computed again in backward, they are: no bit changes.
 */
export function compileRun(input: CompileInput): CompiledRun {
  const kept = compileKeeping(input, 'kept');
  if (fitsBudget(input, kept) || !kept.steps.some(({ program }) => program.keepsHidden)) return kept;
  const again = compileKeeping(input, 'again');
  return fitsBudget(input, again) ? again : kept;
}

function fitsBudget({ config }: CompileInput, { memory }: CompiledRun): boolean {
  return memory.reservedBytes <= (config.memoryBudgetMiB ?? Number.POSITIVE_INFINITY) * 2 ** 20;
}

function compileKeeping(input: CompileInput, hidden: CompiledRun['hidden']): CompiledRun {
  const { strategy } = input.config;
  const { run, gathers } = compileWith(input, null, hidden);
  const fits = (tried: CompiledRun) => fitsBudget(input, tried);
  if (strategy.kind === 'ddp' || strategy.limitAllGathers || gathers.length === 0 || fits(run)) return run;
  let best = compileWith(input, LEAST_SLOTS, hidden);
  let [fit, tooMany] = [LEAST_SLOTS, gathers.length];
  while (fits(best.run) && tooMany - fit > 1) {
    const middle = (fit + tooMany) >> 1;
    const tried = compileWith(input, middle, hidden);
    if (fits(tried.run)) [fit, best] = [middle, tried];
    else tooMany = middle;
  }
  const slotWaits = best.gathers.filter((g, i) => g.afterFreeOf !== gathers[i].afterFreeOf).length;
  return { ...best.run, slotWaits };
}

/** Units that are gathered at once with limitAllGathers. */
const LEAST_SLOTS = 2;

interface CompiledWith {
  readonly run: CompiledRun;
  readonly gathers: readonly Gather[];
}

function compileWith(
  { config, model, shapes, rank, profile }: CompileInput,
  slots: number | null,
  hidden: CompiledRun['hidden'],
): CompiledWith {
  const world = config.devices;
  const { optimizer, trainer } = config;
  refuseUnmatched(
    'optimizer.groups',
    config.optimizer.groups.map(({ match }) => match),
    model,
  );
  refuseUnmatched('checkpoint.filter', config.checkpoint.filter ?? [], model);
  const policy = wrapPolicyOf(config, model);
  const onDevice = makesValuesOnDevice(config);
  const precision = precisionOf(config);
  const draftStep = (shape: BatchShape, training: TrainingStepPlan | null) => {
    const traced = unitProgram(model, shape, { rank, seed: trainer.seed }, policy, {
      checkpointing: training ? [] : config.strategy.activationCheckpointingPolicy,
      freeze: config.model.freeze,
      microBatches: training ? 1 : trainer.accumulateGradBatches,
      syncEveryMicroBatch: syncs(config),
      againFromBytes: profile.againFromBytes,
      hiddenAgain: hidden === 'again',
      evaluate: training !== null,
    });
    const precise = withPrecision(traced, precision, profile.tensorCores === true);
    const program = withSplitSums(withJoinedGradients(precise, profile), profile);
    const strategy = training
      ? evaluation(training.strategy, program, evaluationOptions(config))
      : strategyOf(config, program, slots);
    const lowered = lower({
      program,
      strategy,
      precision,
      training,
      optimizer,
      clipping: clippingOf(config),
      stopOnNonFinite: trainer.onNonFinite === 'stop',
      linkGBps: config.strategy.kind === 'fsdp' ? config.strategy.linkGBps : null,
      cpuOffload: config.strategy.kind === 'fsdp' && config.strategy.cpuOffload,
      steps: trainer.steps,
      rank,
      world,
      profile,
    });
    if (onDevice && model.parameters.some(({ init }) => init.kind === 'normal'))
      lowered.draft.constant(QUANTILES_TENSOR, QUANTILES * 4, normalQuantiles());
    return { shape, program, strategy, ...lowered, ...withLifetimes(lowered.draft) };
  };
  const drafted = shapes.map((shape) => draftStep(shape, null));
  const [{ strategy: trained, draft: first, updatesInBackward }] = drafted;
  const validates = trainer.validateEvery !== null;
  if (validates) drafted.push(draftStep(shapes[0], { strategy: trained, regions: first.regions }));
  const programs = drafted.map(({ draft, lives, steps }, i) => ({
    tensors: draft.tensors,
    lives: packingLives(draft.tensors, steps, lives, draft.spareBytes()),
    // Before step 0 one slot more serves all dispatches that make initial values.
    dispatchCount: countDispatches(steps) + (onDevice && i === 0 ? 1 : 0),
  }));
  const memory = packMemory(programs, profile);
  const steps = drafted.map(({ shape, program, draft, groups, control, steps: dated, lives }, i): CompiledStep => {
    const schedule: Schedule = {
      rank,
      world,
      tensors: draft.tensors,
      steps: withJoinedVisits(withWaits(draft.tensors, dated, lives, memory.placements[i]), profile),
      regions: draft.regions,
    };
    verify(schedule);
    const uniformOffsetBytes = memory.uniformOffsets[i];
    return { shape, program, schedule, placements: memory.placements[i], uniformOffsetBytes, groups, control };
  });
  const { mesh } = trained;
  const initSlot = memory.uniformOffsets[0] + (programs[0].dispatchCount - 1) * UNIFORM_SLOT_BYTES;
  const run: CompiledRun = {
    rank,
    world,
    model,
    precision,
    shards: { count: mesh.shard, index: shardGroup(mesh, rank).index },
    steps,
    memory,
    evaluation: validates ? shapes.length : null,
    init: { mode: config.init.mode, device: onDevice ? { uniformOffsetBytes: initSlot } : null },
    slotWaits: 0,
    hidden,
    updatesInBackward,
    regions: steps[0].schedule.regions,
  };
  return { run, gathers: trained.gathers };
}

/** Throws `invalid-config` for a pattern of the setting `path` that fits no parameter. */
function refuseUnmatched(path: string, patterns: readonly string[], model: Model): void {
  const names = model.parameters.map((p) => p.name);
  const { unmatched } = matchNames(patterns, names);
  if (unmatched.length)
    throw new StudioError(
      'invalid-config',
      `${path}: ${unmatched.join(', ')} fits no parameter. A name is, for example, ${names[0]}; * stands for any characters`,
    );
}

/** Values that come from a file, or that are kept on the host or in float16, are not made by the device. */
function makesValuesOnDevice({ init, checkpoint, strategy, precision }: ExperimentConfig): boolean {
  if (init.mode !== 'device' || init.from !== null || checkpoint.resume !== null) return false;
  return precision !== '16-true' && !(strategy.kind === 'fsdp' && strategy.cpuOffload);
}

/** Where the step is cut: at the wrap policy's modules, or for DDP at the model's own blocks. */
function wrapPolicyOf({ strategy }: ExperimentConfig, model: Model): WrapPolicy {
  return strategy.kind === 'ddp' ? model.blockClasses : strategy.autoWrapPolicy;
}

/** Whether each micro-batch's gradients are reduced by themselves. A rank alone has nothing to reduce. */
function syncs({ trainer, devices }: ExperimentConfig): boolean {
  return trainer.syncEveryMicroBatch && trainer.accumulateGradBatches > 1 && devices > 1;
}

function evaluationOptions({ strategy }: ExperimentConfig): EvaluationOptions {
  if (strategy.kind === 'ddp') return { limitAllGathers: true, keepsGathered: false };
  const keepsGathered = ['SHARD_GRAD_OP', 'HYBRID_SHARD_ZERO2'].includes(strategy.shardingStrategy);
  return { limitAllGathers: strategy.limitAllGathers, keepsGathered };
}

function clippingOf({ trainer }: ExperimentConfig): Clipping {
  const { gradientClipVal, gradientClipAlgorithm } = trainer;
  return {
    maxNorm: gradientClipAlgorithm === 'norm' ? gradientClipVal : null,
    maxValue: gradientClipAlgorithm === 'value' ? gradientClipVal : null,
  };
}

function strategyOf(config: ExperimentConfig, program: UnitProgram, slots: number | null): StrategyPlan {
  const { strategy, devices } = config;
  const offload = strategy.kind === 'fsdp' && strategy.cpuOffload;
  if (devices === 1 && !offload) return noShard(program, 1);
  if (strategy.kind === 'ddp') return ddp(program, devices, strategy.bucketCapMiB);
  // What is on the host has to be gathered even where it is whole.
  if (strategy.shardingStrategy === 'NO_SHARD' && offload)
    return fullShard(program, { replicate: devices, shard: 1 }, { ...strategy, slots });
  const row = { replicate: 1, shard: devices };
  const [replicate, shard] = strategy.deviceMesh ?? [1, devices];
  switch (strategy.shardingStrategy) {
    case 'NO_SHARD':
      return noShard(program, devices);
    case 'FULL_SHARD':
      return fullShard(program, row, { ...strategy, slots });
    case 'SHARD_GRAD_OP':
      return shardGradOp(program, row, { ...strategy, syncEveryMicroBatch: syncs(config) });
    case 'HYBRID_SHARD':
      return fullShard(program, { replicate, shard }, { ...strategy, slots });
    case 'HYBRID_SHARD_ZERO2':
      return shardGradOp(program, { replicate, shard }, { ...strategy, syncEveryMicroBatch: syncs(config) });
  }
}
