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
  const ofRoot = whole.map((use): Gather => ({ ...use, ...atStart }));
  const all = [...forward, ...backward];
  let issued = 0;
  const ofUnits = all.map((use, k): Gather => {
    const isForward = k < forward.length;
    const place = isForward ? atStart : placeInBackward(backward, k - forward.length, program, options);
    const before = endedBefore(all, k);
    const waited = freeToAwait(before, k, isForward, options);
    // A gather is listed after the free that it waits for, and gathers in the order of their uses.
    issued = Math.max(issued, place.issueBeforeVisit, waited === null ? 0 : all[waited].lastVisit + 1);
    return {
      ...use,
      ...place,
      issueBeforeVisit: issued,
      afterFreeOf: waited === null ? null : waited + ofRoot.length,
    };
  });
  return { sharded: true, groups, gathers: [...ofRoot, ...ofUnits] };
}

const atStart = { issueBeforeVisit: 0, afterReductions: false, afterFreeOf: null, afterVisitBefore: false } as const;

/** Earlier uses that end before use `k` begins, in the order in which they end. */
function endedBefore(uses: readonly Use[], k: number): number[] {
  const ended = uses.slice(0, k).map((_, j) => j);
  return ended
    .filter((j) => uses[j].lastVisit < uses[k].firstVisit)
    .sort((a, b) => uses[a].lastVisit - uses[b].lastVisit);
}

/**
 * The use whose free the gather of use `k` awaits. With the limiter at most one earlier gather is outstanding: the unit
 * that ended last, or, where units around this one are still in use, those alone. BACKWARD_POST awaits the unit before.
 */
function freeToAwait(
  ended: readonly number[],
  k: number,
  isForward: boolean,
  { limitAllGathers, backwardPrefetch }: FullShardOptions,
): number | null {
  const inUse = k - ended.length;
  const isPost = !isForward && backwardPrefetch === 'BACKWARD_POST';
  if (!limitAllGathers && !isPost) return null;
  const mayStay = inUse > 0 || isPost ? 0 : 1;
  return ended[ended.length - 1 - mayStay] ?? null;
}

/**
 * BACKWARD_PRE: before the backward of the unit before it, so that communication and computation overlap, at the price of
 * two gathered units. BACKWARD_POST: once that unit is freed, before its gradients are reduced. None: on demand.
 */
function placeInBackward(
  backward: readonly Use[],
  k: number,
  program: UnitProgram,
  { backwardPrefetch }: FullShardOptions,
) {
  const own = backward[k].firstVisit;
  if (backwardPrefetch === null)
    return { ...atStart, issueBeforeVisit: own, afterReductions: true, afterVisitBefore: true };
  const start = program.visits.findIndex((visit) => visit.phase === 'backward');
  if (backwardPrefetch === 'BACKWARD_POST') return { ...atStart, issueBeforeVisit: k === 0 ? own : start };
  return { ...atStart, issueBeforeVisit: k === 0 ? Math.max(start, own - 1) : backward[k - 1].firstVisit };
}

function usesOf(program: UnitProgram, group: Group, index: number): Use[] {
  const visits = visitsOf(program, group.parameters, 'parameter');
  const phases = ['forward', 'backward'] as const;
  return phases.flatMap((name) => {
    const own = visits.filter((v) => program.visits[v].phase === name);
    return own.length ? [{ group: index, name, firstVisit: own[0], lastVisit: own[own.length - 1] }] : [];
  });
}
