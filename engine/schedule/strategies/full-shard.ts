import type { UnitProgram } from '../unit-program.ts';
import { type Gather, type Group, type StrategyPlan, unitGroups, visitsOf } from './strategy.ts';

export interface FullShardOptions {
  readonly limitAllGathers: boolean;
  readonly backwardPrefetch: 'BACKWARD_PRE' | 'BACKWARD_POST' | null;
}

/** What is known of a gather before it is decided when to issue it. */
type Use = Pick<Gather, 'group' | 'name' | 'firstVisit' | 'lastVisit'>;

/**
 * FULL_SHARD: each rank keeps 1/world of every parameter, gradient and optimizer state. A unit is gathered before its
 * forward and freed after it, and again around its backward; the root stays gathered from its first use to its last
 * (torch.distributed.fsdp, ShardingStrategy.FULL_SHARD).
 */
export function fullShard(program: UnitProgram, options: FullShardOptions): StrategyPlan {
  const groups = unitGroups(program);
  const uses = groups.map((group, index) => usesOf(program, group, index));
  const root = groups.findIndex((group) => group.name === 'root');
  const whole = uses
    .filter((_, index) => index === root)
    .map(([forward, backward]): Use => ({ ...forward, name: 'step', lastVisit: (backward ?? forward).lastVisit }));
  const units = uses.filter((_, index) => index !== root);
  const byFirstVisit = (a: Use, b: Use) => a.firstVisit - b.firstVisit;
  const forward = units.flatMap((u) => u.filter((use) => use.name === 'forward')).sort(byFirstVisit);
  const backward = units.flatMap((u) => u.filter((use) => use.name === 'backward')).sort(byFirstVisit);
  const firstOfRoot = whole.map((use) => ({ ...use, ...atStart }));
  const limited = [...forward, ...backward].map((use, k): Gather => {
    const two = k - 2;
    const afterFreeOf = options.limitAllGathers && two >= 0 ? two + firstOfRoot.length : null;
    const isForward = k < forward.length;
    const place = isForward
      ? placeInForward(forward, k, options)
      : placeInBackward(backward, k - forward.length, options);
    return { ...use, ...place, afterFreeOf };
  });
  return { sharded: true, groups, gathers: [...firstOfRoot, ...limited] };
}

const atStart = { issueBeforeVisit: 0, afterReductions: false, afterFreeOf: null, afterVisitBefore: false } as const;

/** With the limiter, as soon as the gather before the last is freed; without it, at once. */
function placeInForward(forward: readonly Use[], k: number, { limitAllGathers }: FullShardOptions) {
  if (!limitAllGathers || k < 2) return atStart;
  return { ...atStart, issueBeforeVisit: forward[k - 2].lastVisit + 1 };
}

/**
 * BACKWARD_PRE: before the backward of the unit before it, so that communication and computation overlap, at the price of
 * two gathered units. BACKWARD_POST: once that unit is freed, before its gradients are reduced. None: on demand.
 */
function placeInBackward(backward: readonly Use[], k: number, { backwardPrefetch }: FullShardOptions) {
  const own = backward[k].firstVisit;
  if (backwardPrefetch === null)
    return { ...atStart, issueBeforeVisit: own, afterReductions: true, afterVisitBefore: true };
  if (backwardPrefetch === 'BACKWARD_POST')
    return { ...atStart, issueBeforeVisit: k === 0 ? own : backward[k - 1].lastVisit + 1 };
  return { ...atStart, issueBeforeVisit: k === 0 ? own - 1 : backward[k - 1].firstVisit };
}

function usesOf(program: UnitProgram, group: Group, index: number): Use[] {
  const visits = visitsOf(program, group.parameters, 'parameter');
  const phases = ['forward', 'backward'] as const;
  return phases.flatMap((name) => {
    const own = visits.filter((v) => program.visits[v].phase === name);
    return own.length ? [{ group: index, name, firstVisit: own[0], lastVisit: own[own.length - 1] }] : [];
  });
}
