import { elementsOf } from '../../ops/graph.ts';
import type { Mesh } from '../mesh.ts';
import type { UnitProgram } from '../unit-program.ts';

/**
 * What a strategy decides: which parameters are stored, reduced and updated as one, over which mesh they are sharded and
 * copied, and when units are gathered. The lowering turns these decisions into steps; it decides nothing itself.
 */
export interface StrategyPlan {
  readonly mesh: Mesh;
  readonly groups: readonly Group[];
  /** In the order in which they are issued. Empty when nothing is sharded. */
  readonly gathers: readonly Gather[];
}

/** Parameters that are stored, gathered, reduced and updated as one flat tensor: a unit, a part of one, or a bucket. */
export interface Group {
  readonly name: string;
  /** The unit that it is of; a bucket's own name. */
  readonly unit: string;
  readonly parameters: readonly string[];
  /** Whether they have gradients and optimizer state. */
  readonly trainable: boolean;
  /** The gradients of each round are reduced after this visit, in which the last of them is complete. */
  readonly reduceAfterVisits: readonly number[];
}

/** One gathering of a unit. Visits are indices into the unit program. */
export interface Gather {
  /** The groups that the unit consists of. */
  readonly groups: readonly number[];
  /** Tells the gathers of one unit apart: what it is for and, of several micro-batches, which. */
  readonly name: string;
  readonly phase: 'forward' | 'backward';
  readonly firstVisit: number;
  /** The gathered parameters are freed after their last use in this visit. */
  readonly lastVisit: number;
  /** Listed before this visit … */
  readonly issueBeforeVisit: number;
  /** … and after the reductions that follow the visit before it, if true. */
  readonly afterReductions: boolean;
  /** Index of an earlier gather whose unit must be freed before this one starts (limitAllGathers, BACKWARD_POST). */
  readonly afterFreeOf: number | null;
  /** Index of an earlier gather whose unit's first kernel must have been issued before this one starts (limitAllGathers). */
  readonly afterUseOf: number | null;
  /** Whether it also has to wait until the visit before it is done: a gather on demand. */
  readonly afterVisitBefore: boolean;
}

/** A gather of which it is not yet decided when to issue it. */
export type Use = Pick<Gather, 'groups' | 'name' | 'phase' | 'firstVisit' | 'lastVisit'>;

/** Issued before this visit, and waits for nothing. */
export function issuedBefore(visit: number) {
  return {
    issueBeforeVisit: visit,
    afterReductions: false,
    afterFreeOf: null,
    afterUseOf: null,
    afterVisitBefore: false,
  } as const;
}

/** Indices of the visits that use any of these parameters, or write their gradients, in order. */
export function visitsOf(
  program: UnitProgram,
  parameters: readonly string[],
  role: 'parameter' | 'parameter-gradient',
): number[] {
  const touches = touchesOf(program);
  const visits = parameters.flatMap((p) => touches.get(p)?.[role === 'parameter' ? 'uses' : 'gradients'] ?? []);
  return [...new Set(visits)].sort((a, b) => a - b);
}

/** A group of these parameters, with the visits after which each round of its gradients is complete. */
export function groupOf(
  program: UnitProgram,
  name: string,
  parameters: readonly string[],
  trainable: boolean,
  unit = name,
): Group {
  const touches = touchesOf(program);
  const last = new Map<number, number>();
  for (const parameter of parameters)
    for (const [round, visit] of touches.get(parameter)?.lastOfRound ?? [])
      last.set(round, Math.max(visit, last.get(round) ?? -1));
  const rounds = [...last.keys()].sort((a, b) => a - b);
  return { name, unit, parameters, trainable, reduceAfterVisits: rounds.map((round) => last.get(round)!) };
}

/** Where one parameter is touched: visits in ascending order, each once. */
interface Touches {
  readonly uses: number[];
  readonly gradients: number[];
  /** The last visit that writes its gradient in each round. */
  readonly lastOfRound: Map<number, number>;
}

/** A deep model has as many groups as visits: a program is looked through once, not once for each group. */
const known = new WeakMap<UnitProgram, ReadonlyMap<string, Touches>>();

function touchesOf(program: UnitProgram): ReadonlyMap<string, Touches> {
  const before = known.get(program);
  if (before) return before;
  const touches = new Map<string, Touches>();
  const of = (parameter: string): Touches => {
    const found = touches.get(parameter) ?? { uses: [], gradients: [], lastOfRound: new Map() };
    touches.set(parameter, found);
    return found;
  };
  const note = (visits: number[], visit: number) => {
    if (visits.at(-1) !== visit) visits.push(visit);
  };
  program.visits.forEach((visit, index) => {
    for (const call of visit.calls)
      for (const o of call.operands) {
        if (o.role === 'parameter') note(of(o.name).uses, index);
        if (o.role !== 'parameter-gradient') continue;
        const gradient = of(o.parameter!);
        note(gradient.gradients, index);
        gradient.lastOfRound.set(o.round ?? 0, index);
      }
  });
  known.set(program, touches);
  return touches;
}

/** A unit with the groups that hold its parameters: trainable ones and frozen ones, which have no gradient. */
export interface GroupedUnit {
  readonly name: string;
  readonly groups: readonly number[];
  readonly parameters: readonly string[];
}

/** A parameter of so many bytes is worth collectives of its own. */
const PART_BYTES = 2 ** 20;

/**
 * The trainable parameters of a unit in the parts that are used in the same visits. The root has an embedding that only
 * the ends of a step use and a head that only its middle does: in a part of its own each is freed after its own last use,
 * and its gradient is reduced, and gone, once it is complete. What is small goes together, as does a unit with one part.
 */
function partsOf(program: UnitProgram, trainable: readonly string[]): string[][] {
  const touches = touchesOf(program);
  const shapes = new Map(program.model.parameters.map((p) => [p.name, p.shape]));
  const parts = new Map<string, string[]>();
  for (const name of trainable) {
    const { uses = [], gradients = [] } = touches.get(name) ?? {};
    const key = 4 * elementsOf(shapes.get(name)!) < PART_BYTES ? '' : `${uses} ${gradients}`;
    parts.set(key, [...(parts.get(key) ?? []), name]);
  }
  const large = [...parts.keys()].filter((key) => key !== '');
  return large.length < 2 ? [[...trainable]] : [...parts.values()];
}

/** The units that own parameters, each as one group or as several: parts that are not used together, and what is frozen. */
export function unitGroups(program: UnitProgram): { groups: Group[]; units: GroupedUnit[] } {
  const groups: Group[] = [];
  const units: GroupedUnit[] = [];
  for (const { name, parameters } of program.units) {
    const frozen = parameters.filter((p) => program.frozen.has(p));
    const trainable = parameters.filter((p) => !program.frozen.has(p));
    const own: number[] = [];
    const parts = trainable.length ? partsOf(program, trainable) : [];
    for (const part of parts) {
      const partName = parts.length === 1 ? name : `${name} ${part[0]}`;
      own.push(groups.push(groupOf(program, partName, part, true, name)) - 1);
    }
    if (frozen.length) own.push(groups.push(groupOf(program, `${name} frozen`, frozen, false, name)) - 1);
    if (own.length) units.push({ name, groups: own, parameters });
  }
  return { groups, units };
}

/** The groups of a unit that some of these visits use: backward needs no bias that is frozen. */
export function groupsUsedIn(
  program: UnitProgram,
  groups: readonly Group[],
  unit: GroupedUnit,
  visits: readonly number[],
): readonly number[] {
  return unit.groups.filter((group) => {
    const uses = new Set(visitsOf(program, groups[group].parameters, 'parameter'));
    return visits.some((visit) => uses.has(visit));
  });
}
