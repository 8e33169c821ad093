import type { UnitProgram } from '../unit-program.ts';

/**
 * What a strategy decides: which parameters are stored, reduced and updated as one, whether each rank keeps all of them
 * or a shard, and when units are gathered. The lowering turns these decisions into steps; it decides nothing itself.
 */
export interface StrategyPlan {
  /** Whether each rank stores 1/world of every parameter. */
  readonly sharded: boolean;
  readonly groups: readonly Group[];
  /** In the order in which they are issued. Empty when nothing is sharded. */
  readonly gathers: readonly Gather[];
}

/** Parameters that are stored, reduced and updated as one flat tensor: a unit, or a bucket. */
export interface Group {
  readonly name: string;
  readonly parameters: readonly string[];
  /** The gradients are reduced after this visit, in which the last of them is complete. */
  readonly reduceAfterVisit: number;
}

/** One gathering of a unit. Visits are indices into the unit program. */
export interface Gather {
  readonly group: number;
  /** Tells the gathers of one group apart. */
  readonly name: 'forward' | 'backward' | 'step';
  readonly firstVisit: number;
  /** The gathered parameters are freed after their last use in this visit. */
  readonly lastVisit: number;
  /** Listed before this visit … */
  readonly issueBeforeVisit: number;
  /** … and after the reductions that follow the visit before it, if true. */
  readonly afterReductions: boolean;
  /** Index of an earlier gather whose unit must be freed before this one starts (limitAllGathers, BACKWARD_POST). */
  readonly afterFreeOf: number | null;
  /** Whether it also has to wait until the visit before it is done: a gather on demand. */
  readonly afterVisitBefore: boolean;
}

/** Indices of the visits that use any of these parameters, or write their gradients, in order. */
export function visitsOf(
  program: UnitProgram,
  parameters: readonly string[],
  role: 'parameter' | 'parameter-gradient',
): number[] {
  const wanted = new Set(parameters);
  const uses = (visit: number) =>
    program.visits[visit].calls.some((call) =>
      call.operands.some((o) => o.role === role && wanted.has(role === 'parameter' ? o.name : o.parameter!)),
    );
  return program.visits.map((_, i) => i).filter(uses);
}

/** The units that own parameters, as groups. */
export function unitGroups(program: UnitProgram): Group[] {
  return program.units
    .filter((unit) => unit.parameters.length > 0)
    .map((unit) => ({
      name: unit.name,
      parameters: unit.parameters,
      reduceAfterVisit: Math.max(...visitsOf(program, unit.parameters, 'parameter-gradient')),
    }));
}
