import { StudioError } from '../errors.ts';
import type { BatchShape, Model, TraceContext } from '../model/model.ts';
import { type Call, Graph, type Phase, type Value } from '../ops/graph.ts';

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
}

/**
 * Traces `model` on one micro-batch and cuts it at the modules whose class `policy` names. Unit 0 is the root. Throws
 * StudioError `invalid-config` when a class of the policy matches no module of the model.
 */
export function unitProgram(
  model: Model,
  shape: BatchShape,
  context: TraceContext,
  policy: readonly string[],
): UnitProgram {
  const graph = new Graph();
  model.trace(graph, shape, context);
  graph.backward();
  const paths = ['', ...wrappedPaths(model, policy)];
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
  return { model, units, visits: visits(graph.calls, unitOf), values: graph.values, control: graph.control };
}

function wrappedPaths(model: Model, policy: readonly string[]): string[] {
  const classes = new Set(model.modules.map((m) => m.className));
  const unknown = policy.filter((name) => !classes.has(name));
  if (unknown.length)
    throw new StudioError(
      'invalid-config',
      `strategy.autoWrapPolicy: ${unknown.join(', ')} matches no module of this model. It has ${[...classes].join(', ')}`,
    );
  return model.modules.filter((m) => m.path !== '' && policy.includes(m.className)).map((m) => m.path);
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
    if (last && last.unit === unit && last.phase === call.phase) last.calls.push(call);
    else list.push({ unit, phase: call.phase, calls: [call] });
  }
  return list;
}
