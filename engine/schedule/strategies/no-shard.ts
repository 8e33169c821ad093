import type { UnitProgram } from '../unit-program.ts';
import { type StrategyPlan, unitGroups } from './strategy.ts';

/**
 * NO_SHARD: every rank keeps all of every unit, and gradients are all-reduced a unit at a time after its backward. With
 * one rank, what every strategy comes to.
 */
export function noShard(program: UnitProgram, world: number): StrategyPlan {
  return { mesh: { replicate: world, shard: 1 }, groups: unitGroups(program).groups, gathers: [] };
}
