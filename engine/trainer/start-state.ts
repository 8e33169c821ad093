import {
  compareNames,
  compareOptimizerState,
  type ExpectedParameter,
  type NameComparison,
  refuseDifferences,
} from '../checkpoint/compare-names.ts';
import {
  dropoutMasksOf,
  iterOf,
  kernelsOf,
  type RunKernels,
  readParameter,
  type StoredCheckpoint,
  samplesOf,
  scalerOf,
} from '../checkpoint/stored-checkpoint.ts';
import { openOptimizer, type StoredOptimizer } from '../checkpoint/stored-optimizer.ts';
import type { ExperimentConfig } from '../config.ts';
import { StudioError } from '../errors.ts';
import type { Model, ParameterSpec } from '../model/model.ts';
import { matchNames } from '../model/name-pattern.ts';
import { MASK_VERSION } from '../ops/dropout/dropout-mask.ts';
import { optimizerStateNames } from '../schedule/storage.ts';
import { namesInStateDict, optimizerGroups } from './describe-checkpoint.ts';
import { freshParameters, type OptimizerStart, type ParameterSource } from './state.ts';

/** Where a run begins: its first step and everything that is kept from step to step. */
export interface StartState {
  /** Optimizer steps that lie behind it. */
  readonly step: number;
  /** Samples that lie behind it; null where nothing says it. */
  readonly samples: number | null;
  readonly parameters: ParameterSource;
  readonly optimizer: OptimizerStart;
  /** What the interrupted run computed with; null where nothing says it, or for a fresh start. */
  readonly kernels: RunKernels | null;
  /** What a person should know of how it was loaded. */
  readonly notes: readonly string[];
}

/** The start of a fresh model. */
export function freshStart(seed: number): StartState {
  return {
    step: 0,
    samples: 0,
    parameters: freshParameters(seed),
    optimizer: { updates: 0, state: async () => null },
    kernels: null,
    notes: [],
  };
}

/**
 * A fresh training of the weights in a checkpoint. Strict, every name must fit; not strict, what is missing is initialised
 * and what is unexpected left aside, and the notes list both. Throws `bad-data`, also for another shape.
 */
export function startFromWeights(checkpoint: StoredCheckpoint, config: ExperimentConfig, model: Model): StartState {
  const comparison = compareNames(checkpoint, expectedOf(model, config));
  refuseDifferences(checkpoint.name, comparison, config.checkpoint.strict);
  return {
    ...freshStart(config.trainer.seed),
    parameters: parametersOf(checkpoint, config, model),
    notes: differences(comparison),
  };
}

/**
 * The training that a checkpoint interrupted: weights, optimizer, steps and samples done. Its optimizer may be keyed by name
 * or number, under any key, in any groups; what counts for the steps to come are this run's own options, and the notes say
 * where the checkpoint's were others. Throws `bad-data` where something is missing that `checkpoint.strict` demands, by
 * name.
 */
export async function resumeFrom(
  checkpoint: StoredCheckpoint,
  config: ExperimentConfig,
  model: Model,
): Promise<StartState> {
  const { strict } = config.checkpoint;
  const expected = expectedOf(model, config);
  const parts = optimizerStateNames(config.optimizer);
  const names = model.parameters.map(({ name }) => name);
  const groupNames = optimizerGroups(config.optimizer, names).map((group) => group.names);
  const stored = await openOptimizer(checkpoint, { groupNames });
  const iter = iterOf(checkpoint);
  // Before the first update there is no state, as in torch.
  const isBeforeAll = iter === 0 && stored?.names.length === 0;
  let comparison = compareNames(checkpoint, expected);
  if (stored && !isBeforeAll)
    comparison = compareOptimizerState(
      comparison,
      stored,
      expected,
      parts.length && hasStep(config) ? ['step', ...parts] : parts,
    );
  refuseDifferences(checkpoint.name, comparison, strict);
  if (!stored && strict)
    throw new StudioError(
      'bad-data',
      `${checkpoint.name} has no optimizer state, so training cannot go on from it as it was. Start from its weights with ` +
        'init.from, or set checkpoint.strict to false',
      { file: checkpoint.name },
    );
  const steps = stored && hasStep(config) ? await updatesOf(checkpoint, stored, names) : null;
  const step = iter ?? steps;
  if (step === null)
    throw new StudioError(
      'bad-data',
      `${checkpoint.name} does not say how many steps are done (its key iter). Start from its weights with init.from`,
      { file: checkpoint.name },
    );
  const updates = steps ?? (stored && !hasStep(config) ? step : 0);
  return {
    step,
    samples: samplesOf(checkpoint),
    kernels: kernelsOf(checkpoint),
    parameters: parametersOf(checkpoint, config, model),
    optimizer: {
      updates,
      scaler: scalerOf(checkpoint),
      state: async (name, part, first, count) =>
        stored?.parts(name).includes(part) ? stored.readState(name, part, first, count) : null,
    },
    notes: [
      ...differences(comparison),
      ...(stored ? optionNotes(stored, config, strict) : ['the optimizer starts afresh: there is no state of it']),
      ...maskNotes(checkpoint, config),
      ...(iter === null ? [`it does not say how many steps are done: taken from the optimizer's, ${step}`] : []),
    ],
  };
}

const hasStep = ({ optimizer }: ExperimentConfig): boolean => optimizer.kind !== 'sgd';

function expectedOf(model: Model, config: ExperimentConfig): ExpectedParameter[] {
  const names = model.parameters.map(({ name }) => name);
  return namesInStateDict({ model, frozen: matchNames(config.model.freeze, names).matched });
}

/** Adam's t, which the parameters share here; null where none has state. */
async function updatesOf(
  checkpoint: StoredCheckpoint,
  stored: StoredOptimizer,
  names: readonly string[],
): Promise<number | null> {
  let first: { name: string; step: number } | null = null;
  for (const name of names) {
    const step = await stored.step(name);
    if (step === null) continue;
    first ??= { name, step };
    if (step !== first.step)
      throw new StudioError(
        'bad-data',
        `${checkpoint.name}: ${first.name} had ${first.step} updates and ${name} ${step}. One run updates all of its ` +
          'parameters equally often; start from the weights with init.from',
        { file: checkpoint.name, name },
      );
  }
  return first?.step ?? null;
}

/** Parameters of the model from the checkpoint, tied ones under any of their names; fresh ones where it has none. */
function parametersOf(checkpoint: StoredCheckpoint, config: ExperimentConfig, model: Model): ParameterSource {
  const fresh = freshParameters(config.trainer.seed);
  const aliases = new Map((model.tied ?? []).map(({ name, tiedTo }) => [tiedTo, name]));
  return async (spec: ParameterSpec, first, count) => {
    const name = [spec.name, aliases.get(spec.name)].find((n) => n !== undefined && checkpoint.model.has(n));
    return name === undefined ? fresh(spec, first, count) : readParameter(checkpoint, name, first, count);
  };
}

function differences({ missing, unexpected, missingState }: NameComparison): string[] {
  return [
    ...(missing.length ? [`${missing.length} missing, initialised afresh: ${missing.join(', ')}`] : []),
    ...(unexpected.length ? [`${unexpected.length} unexpected, left aside: ${unexpected.join(', ')}`] : []),
    ...(missingState.length
      ? [`${missingState.length} without state, which starts at zero: ${missingState.join(', ')}`]
      : []),
  ];
}

function maskNotes(checkpoint: StoredCheckpoint, { model }: ExperimentConfig): string[] {
  const masks = dropoutMasksOf(checkpoint);
  if (model.dropout === 0 || masks === null || masks === MASK_VERSION) return [];
  return [
    `it was trained with dropout's masks of version ${masks} and goes on with those of version ${MASK_VERSION}, which drop other elements`,
  ];
}

/** How the options in the checkpoint differ from those of this run. What this engine cannot compute is refused if strict. */
function optionNotes(stored: StoredOptimizer, config: ExperimentConfig, strict: boolean): string[] {
  const notes = new Set<string>();
  const { optimizer } = config;
  for (const { names, kinds, options, filled, unknown, unsupported } of stored.groups) {
    if (unsupported.length && strict)
      throw new StudioError(
        'bad-data',
        `${stored.key} was trained with ${unsupported.join(', ')}, which this engine does not compute. Set ` +
          'checkpoint.strict to false to go on without it',
        { unsupported },
      );
    if (unsupported.length) notes.add(`${stored.key}: goes on without ${unsupported.join(', ')}`);
    if (kinds.length && !kinds.includes(optimizer.kind))
      notes.add(`it was trained with ${kinds.join(' or ')} and goes on with ${optimizer.kind}`);
    if (unknown.length) notes.add(`${stored.key}: options that are not known here: ${unknown.join(', ')}`);
    if (filled.length) notes.add(`${stored.key}: options that it lacks, taken as by default: ${filled.join(', ')}`);
    const ours = optimizerGroups(optimizer, names);
    const changed = (what: string, was: unknown, is: unknown) => {
      if (JSON.stringify(was) !== JSON.stringify(is))
        notes.add(`${what} was ${JSON.stringify(was)} and is ${JSON.stringify(is)}`);
    };
    for (const group of ours) {
      changed('lr', options.lr, group.lr);
      changed('weightDecay', options.weightDecay, group.weightDecay);
    }
    if (optimizer.kind === 'sgd') {
      changed('momentum', options.momentum, optimizer.momentum);
      changed('nesterov', options.nesterov, optimizer.nesterov);
    } else {
      changed('betas', options.betas, optimizer.betas);
      changed('eps', options.eps, optimizer.eps);
    }
  }
  return [...notes];
}
