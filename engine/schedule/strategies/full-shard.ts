import type { Mesh } from '../mesh.ts';
import type { UnitProgram } from '../unit-program.ts';
import {
  type Gather,
  type Group,
  type GroupedUnit,
  groupsUsedIn,
  issuedBefore,
  type StrategyPlan,
  type Use,
  unitGroups,
  visitsOf,
} from './strategy.ts';

export interface FullShardOptions {
  readonly limitAllGathers: boolean;
  readonly forwardPrefetch: boolean;
  readonly backwardPrefetch: 'BACKWARD_PRE' | 'BACKWARD_POST' | null;
  /** Without the limiter: units besides the root that may be gathered at once; as many as there are if left out. */
  readonly slots?: number | null;
}

/** The uses of one micro-batch: visits `start` … `backwardStart` are its forward. */
interface MicroBatch {
  readonly start: number;
  readonly backwardStart: number;
  readonly root: readonly Use[];
  readonly forward: readonly Use[];
  readonly backward: readonly Use[];
}

/**
 * FULL_SHARD: each rank of a row keeps 1/shard of every parameter, gradient and optimizer state. A unit is gathered before
 * its forward and freed after it, and again around its backward; the root stays gathered from its first use to its last
 * in a micro-batch (torch.distributed.fsdp, ShardingStrategy.FULL_SHARD). With more than one row it is HYBRID_SHARD.
 */
export function fullShard(program: UnitProgram, mesh: Mesh, options: FullShardOptions): StrategyPlan {
  const { groups, units } = unitGroups(program);
  const microBatches = program.microBatchStarts.map((start, m) => usesIn(program, groups, units, start, m));
  const roots = microBatches.flatMap((m) => m.root.map((use): Gather => ({ ...use, ...issuedBefore(m.start) })));
  const all = microBatches.flatMap((m) => [...m.forward, ...m.backward]);
  let issued = 0;
  let k = 0;
  const ofUnits: Gather[] = [];
  for (const m of microBatches)
    for (const [uses, isForward] of [
      [m.forward, true],
      [m.backward, false],
    ] as const)
      uses.forEach((use, j) => {
        const place = isForward ? placeInForward(uses, j, m, options) : placeInBackward(uses, j, m, options);
        const waited = freeToAwait(all, k, isForward, options);
        // A gather is listed after the free that it waits for, and gathers in the order of their uses.
        issued = Math.max(issued, place.issueBeforeVisit, waited === null ? 0 : all[waited].lastVisit + 1);
        const afterFreeOf = waited === null ? null : waited + roots.length;
        ofUnits.push({ ...use, ...place, issueBeforeVisit: issued, afterFreeOf });
        k++;
      });
  return { mesh, groups, gathers: [...roots, ...ofUnits] };
}

function usesIn(
  program: UnitProgram,
  groups: readonly Group[],
  units: readonly GroupedUnit[],
  start: number,
  m: number,
): MicroBatch {
  const end = program.microBatchStarts[m + 1] ?? program.visits.length;
  const tag = program.microBatchStarts.length > 1 ? ` ${m}` : '';
  const use = (unit: GroupedUnit, name: string, own: readonly number[]): Use => ({
    groups: groupsUsedIn(program, groups, unit, own),
    name: `${name}${tag}`,
    phase: program.visits[own[0]].phase,
    firstVisit: own[0],
    lastVisit: own[own.length - 1],
  });
  const root: Use[] = [];
  const forward: Use[] = [];
  const backward: Use[] = [];
  for (const unit of units) {
    const visits = visitsOf(program, unit.parameters, 'parameter').filter((v) => start <= v && v < end);
    const of = (phase: string) => visits.filter((v) => program.visits[v].phase === phase);
    if (visits.length === 0) continue;
    if (unit.name === 'root') {
      root.push(use(unit, 'step', visits));
      continue;
    }
    if (of('forward').length) forward.push(use(unit, 'forward', of('forward')));
    if (of('backward').length) backward.push(use(unit, 'backward', of('backward')));
  }
  const byFirstVisit = (a: Use, b: Use) => a.firstVisit - b.firstVisit;
  const backwardStart = program.visits.findIndex((visit, v) => v >= start && visit.phase === 'backward');
  return {
    start,
    backwardStart: backwardStart < 0 ? end : backwardStart,
    root,
    forward: forward.sort(byFirstVisit),
    backward: backward.sort(byFirstVisit),
  };
}

/**
 * The use whose free the gather of use `k` awaits. With the limiter at most one earlier gather is outstanding: the unit
 * that ended last, or, where units around this one are still in use, those alone. BACKWARD_POST awaits the unit before.
 * Slots allow as many earlier gathers as there are slots beside this one's.
 */
function freeToAwait(
  uses: readonly Use[],
  k: number,
  isForward: boolean,
  { limitAllGathers, backwardPrefetch, slots = null }: FullShardOptions,
): number | null {
  const ended = endedBefore(uses, k);
  const inUse = k - ended.length;
  const isPost = !isForward && backwardPrefetch === 'BACKWARD_POST';
  const outstanding = limitAllGathers ? 1 : slots === null ? null : slots - 1;
  if (outstanding === null && !isPost) return null;
  const mayStay = isPost ? 0 : Math.max(0, outstanding! - inUse);
  return ended[ended.length - 1 - mayStay] ?? null;
}

/** Earlier uses that end before use `k` begins, in the order in which they end. */
function endedBefore(uses: readonly Use[], k: number): number[] {
  const ended = uses.slice(0, k).map((_, j) => j);
  return ended
    .filter((j) => uses[j].lastVisit < uses[k].firstVisit)
    .sort((a, b) => uses[a].lastVisit - uses[b].lastVisit);
}

/** As early as its lane and the limiter allow; with forwardPrefetch, when the forward of the unit before it begins. */
function placeInForward(forward: readonly Use[], j: number, m: MicroBatch, { forwardPrefetch }: FullShardOptions) {
  return issuedBefore(forwardPrefetch && j > 0 ? forward[j - 1].firstVisit : m.start);
}

/**
 * BACKWARD_PRE: before the backward of the unit before it, so that communication and computation overlap, at the price of
 * two gathered units. BACKWARD_POST: once that unit is freed, before its gradients are reduced. None: on demand.
 */
function placeInBackward(backward: readonly Use[], j: number, m: MicroBatch, { backwardPrefetch }: FullShardOptions) {
  const own = backward[j].firstVisit;
  if (backwardPrefetch === null) return { ...issuedBefore(own), afterReductions: true, afterVisitBefore: true };
  if (backwardPrefetch === 'BACKWARD_POST') return issuedBefore(j === 0 ? own : m.backwardStart);
  return issuedBefore(j === 0 ? Math.max(m.backwardStart, own - 1) : backward[j - 1].firstVisit);
}
