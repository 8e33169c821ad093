import type { UnitProgram } from '../unit-program.ts';
import { type StrategyPlan, unitGroups } from './strategy.ts';

/** One rank, whatever the strategy: everything stays where it is. */
export function replicated(program: UnitProgram): StrategyPlan {
  return { sharded: false, groups: unitGroups(program), gathers: [] };
}
