import type { Mesh } from '../mesh.ts';
import type { UnitProgram } from '../unit-program.ts';
import {
  type Gather,
  groupsUsedIn,
  issuedBefore,
  type StrategyPlan,
  type Use,
  unitGroups,
  visitsOf,
} from './strategy.ts';

export interface ShardGradOpOptions {
  readonly limitAllGathers: boolean;
  readonly forwardPrefetch: boolean;
  /** Whether each micro-batch's gradients are reduced by themselves: if not, units stay gathered through all of them. */
  readonly syncEveryMicroBatch: boolean;
}

/**
 * SHARD_GRAD_OP: what is kept from step to step is sharded as in FULL_SHARD, but a unit once gathered stays so from its
 * forward to the end of its backward: one gather instead of two (torch.distributed.fsdp, ShardingStrategy.SHARD_GRAD_OP).
 * With more than one row of the mesh it is HYBRID_SHARD_ZERO2.
 */
export function shardGradOp(program: UnitProgram, mesh: Mesh, options: ShardGradOpOptions): StrategyPlan {
  const { groups, units } = unitGroups(program);
  const starts = options.syncEveryMicroBatch ? program.microBatchStarts : [0];
  const uses = starts.flatMap((start, m) => {
    const end = starts[m + 1] ?? program.visits.length;
    const tag = starts.length > 1 ? ` ${m}` : '';
    const own = units.flatMap((unit): (Use & { isRoot: boolean; start: number })[] => {
      const visits = visitsOf(program, unit.parameters, 'parameter').filter((v) => start <= v && v < end);
      if (visits.length === 0) return [];
      const [firstVisit] = visits;
      const lastVisit = visits[visits.length - 1];
      const isRoot = unit.name === 'root';
      const used = groupsUsedIn(program, groups, unit, visits);
      return [{ groups: used, name: `step${tag}`, phase: 'forward', firstVisit, lastVisit, isRoot, start }];
    });
    return own.sort((a, b) => a.firstVisit - b.firstVisit);
  });
  const roots = uses
    .filter((use) => use.isRoot)
    .map(({ start, isRoot: _, ...use }) => ({ ...use, ...issuedBefore(start) }));
  const ofUnits = uses.filter((use) => !use.isRoot);
  let issued = 0;
  const gathers = ofUnits.map(({ start, isRoot: _, ...use }, k): Gather => {
    // With the limiter at most one earlier unit is gathered and not yet in use.
    const awaited = options.limitAllGathers && k >= 2 ? k - 2 : null;
    const earliest = options.forwardPrefetch && k > 0 ? ofUnits[k - 1].firstVisit : start;
    issued = Math.max(
      issued,
      Math.min(earliest, use.firstVisit),
      awaited === null ? 0 : ofUnits[awaited].firstVisit + 1,
    );
    return { ...use, ...issuedBefore(issued), afterUseOf: awaited === null ? null : awaited + roots.length };
  });
  return { mesh, groups, gathers: [...roots, ...gathers] };
}
