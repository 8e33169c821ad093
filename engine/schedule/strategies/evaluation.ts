import type { UnitProgram } from '../unit-program.ts';
import { type Gather, issuedBefore, type StrategyPlan, visitsOf } from './strategy.ts';

export interface EvaluationOptions {
  readonly limitAllGathers: boolean;
  /** SHARD_GRAD_OP and its hybrid form free nothing before the end of the pass. */
  readonly keepsGathered: boolean;
}

/**
 * The forward-only pass of a strategy: the groups of training, nothing to reduce, each unit gathered once. FULL_SHARD
 * frees as it goes, SHARD_GRAD_OP at the end of the pass.
 */
export function evaluation(training: StrategyPlan, program: UnitProgram, options: EvaluationOptions): StrategyPlan {
  const groups = training.groups.map((group) => ({ ...group, reduceAfterVisits: [] }));
  const end = program.visits.length - 1;
  const units = new Map(training.gathers.map((g) => [g.groups[0], g.groups]));
  const uses = [...units.values()].map((own) => {
    const visits = visitsOf(
      program,
      own.flatMap((g) => groups[g].parameters),
      'parameter',
    );
    const isRoot = groups[own[0]].unit === 'root';
    const lastVisit = options.keepsGathered ? end : visits[visits.length - 1];
    return {
      isRoot,
      use: { groups: own, name: 'evaluation', phase: 'forward', firstVisit: visits[0], lastVisit } as const,
    };
  });
  const roots = uses.filter((u) => u.isRoot).map((u): Gather => ({ ...u.use, ...issuedBefore(0) }));
  const ofUnits = uses.filter((u) => !u.isRoot).map((u) => u.use);
  ofUnits.sort((a, b) => a.firstVisit - b.firstVisit);
  const gathers = ofUnits.map((use, k): Gather => {
    if (!options.limitAllGathers || k < 2) return { ...use, ...issuedBefore(0) };
    const before = ofUnits[k - 2];
    const awaited = k - 2 + roots.length;
    if (options.keepsGathered) return { ...use, ...issuedBefore(before.firstVisit + 1), afterUseOf: awaited };
    return { ...use, ...issuedBefore(before.lastVisit + 1), afterFreeOf: awaited };
  });
  return { mesh: training.mesh, groups, gathers: [...roots, ...gathers] };
}
