import { StudioError } from '../errors.ts';
import type { BatchShape, Model, TraceContext } from '../model/model.ts';
import { matchNames } from '../model/name-pattern.ts';
import { type Call, Graph, type Phase, type Value } from '../ops/graph.ts';
import { refuseTooMany } from './planning-limits.ts';
import { modulesOfClasses, type WrapPolicy, wrappedPaths } from './wrap-policy.ts';

/**
 * The unit program: what the model says, cut into units. A unit is what is gathered and freed as one: each module that the
 * wrap policy names, and the root, which holds the rest.
 */

export interface Unit {
  readonly index: number;
  /** Path of the module, '' for the root. */
  readonly path: string;
  /** For people: the path, or "root". */
  readonly name: string;
  /** state_dict names of the parameters that it owns, in order. */
  readonly parameters: readonly string[];
}

/** A run of calls of one unit in one phase. */
export interface Visit {
  readonly unit: number;
  readonly phase: Phase;
  readonly calls: readonly Call[];
}

export interface UnitProgram {
  readonly model: Model;
  readonly units: readonly Unit[];
  /** Forward visits, then backward ones, in the order in which they run. */
  readonly visits: readonly Visit[];
  readonly values: readonly Value[];
  readonly control: Value;
  /** state_dict names of the parameters that are not trained. */
  readonly frozen: ReadonlySet<string>;
  /** First visit of each micro-batch. */
  readonly microBatchStarts: readonly number[];
  /** Whether hidden layers are kept that backward could compute again. */
  readonly keepsHidden: boolean;
}

export interface ProgramOptions {
  /** Class names of blocks that are computed again in backward. */
  readonly checkpointing?: readonly string[];
  /** Name patterns of parameters that are not trained. */
  readonly freeze?: readonly string[];
  readonly microBatches?: number;
  /** Whether each micro-batch's gradients are a round of their own. */
  readonly syncEveryMicroBatch?: boolean;
  /** From how many bytes on what is cheap to compute is computed again in backward; nothing if left out. */
  readonly againFromBytes?: number;
  /** Whether that goes for hidden layers too. */
  readonly hiddenAgain?: boolean;
  /** Forward only, nothing dropped: a pass that measures. */
  readonly evaluate?: boolean;
}

/**
 * Traces `model` on the micro-batches of a step and cuts it at the modules that `policy` wraps. Unit 0 is the root. Throws
 * StudioError `invalid-config` when a class or a pattern matches nothing, or more units are made than can be planned for.
 */
export function unitProgram(
  model: Model,
  shape: BatchShape,
  context: TraceContext,
  policy: WrapPolicy,
  options: ProgramOptions = {},
): UnitProgram {
  const { microBatches = 1, syncEveryMicroBatch = false, evaluate = false } = options;
  const paths = ['', ...wrappedPaths(model, policy)];
  refuseTooMany('units', paths.length * microBatches);
  const frozen = frozenParameters(model, options.freeze ?? []);
  const checkpointed = checkpointedPaths(model, options.checkpointing ?? []);
  const again = evaluate ? undefined : options.againFromBytes;
  const graph = new Graph({
    checkpointed: new Set(checkpointed),
    frozen,
    againFromBytes: again,
    hiddenAgain: options.hiddenAgain,
    forwardOnly: evaluate,
  });
  for (let microBatch = 0; microBatch < microBatches; microBatch++) {
    if (microBatch > 0) graph.nextMicroBatch(syncEveryMicroBatch);
    model.trace(graph, shape, { ...context, microBatch, microBatches, evaluate });
    if (!evaluate) graph.backward();
  }
  refuseUnchecked(model, checkpointed, graph.checkpointedBlocks);
  const unitOfModule = new Map(paths.map((path, index) => [path, index]));
  const owner = new Map<string, number>();
  const unitOf = (module: string) => innermost(module, unitOfModule);
  for (const call of graph.calls)
    for (const operand of call.operands) {
      if (operand.role !== 'parameter') continue;
      const user = unitOf(call.module);
      const known = owner.get(operand.name);
      owner.set(operand.name, known === undefined ? user : commonUnit(paths, known, user));
    }
  const units = paths.map((path, index) => ({
    index,
    path,
    name: path === '' ? 'root' : path,
    parameters: model.parameters.map((p) => p.name).filter((name) => owner.get(name) === index),
  }));
  const cut = visits(graph.calls, unitOf);
  const microBatchStarts = Array.from({ length: microBatches }, (_, m) =>
    cut.findIndex((visit) => visit.calls[0].microBatch === m),
  );
  return {
    model,
    units,
    visits: cut,
    values: graph.values,
    control: graph.control,
    frozen,
    microBatchStarts,
    keepsHidden: graph.keepsHidden,
  };
}

function frozenParameters(model: Model, patterns: readonly string[]): Set<string> {
  const names = model.parameters.map((p) => p.name);
  const { matched, unmatched } = matchNames(patterns, names);
  if (unmatched.length)
    throw new StudioError(
      'invalid-config',
      `model.freeze: ${unmatched.join(', ')} fits no parameter. A name is, for example, ${names[0]}; * stands for any characters`,
    );
  if (matched.size === names.length)
    throw new StudioError('invalid-config', 'model.freeze: every parameter is frozen, so there is nothing to train');
  return matched;
}

function checkpointedPaths(model: Model, classNames: readonly string[]): string[] {
  return modulesOfClasses(model, classNames, 'strategy.activationCheckpointingPolicy');
}

/** Only the repeated blocks can be computed again by themselves. */
function refuseUnchecked(model: Model, wanted: readonly string[], found: ReadonlySet<string>): void {
  const missing = model.modules.find((m) => wanted.includes(m.path) && !found.has(m.path));
  if (missing)
    throw new StudioError(
      'invalid-config',
      `strategy.activationCheckpointingPolicy: ${missing.className} is not a block of this model; checkpoint ` +
        model.blockClasses.join(' or '),
    );
}

function innermost(module: string, unitOfModule: ReadonlyMap<string, number>): number {
  for (let path = module; path !== ''; path = path.slice(0, Math.max(0, path.lastIndexOf('.')))) {
    const unit = unitOfModule.get(path);
    if (unit !== undefined) return unit;
  }
  return 0;
}

/** The lowest unit that contains both: a tied parameter lives there. */
function commonUnit(paths: readonly string[], a: number, b: number): number {
  if (a === b) return a;
  const contains = (outer: string, inner: string) => outer === '' || inner === outer || inner.startsWith(`${outer}.`);
  const common = paths
    .map((path, index) => ({ path, index }))
    .filter(({ path }) => contains(path, paths[a]) && contains(path, paths[b]));
  return common.reduce((best, c) => (c.path.length >= best.path.length ? c : best)).index;
}

function visits(calls: readonly Call[], unitOf: (module: string) => number): Visit[] {
  const list: { unit: number; phase: Phase; calls: Call[] }[] = [];
  for (const call of calls) {
    const unit = unitOf(call.module);
    const last = list[list.length - 1];
    const same = last?.unit === unit && last.phase === call.phase && last.calls[0].microBatch === call.microBatch;
    if (same) last.calls.push(call);
    else list.push({ unit, phase: call.phase, calls: [call] });
  }
  return list;
}
