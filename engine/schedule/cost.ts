import type { AdapterProfile } from './profile.ts';
import { type Action, dispatches, type Lane, type Schedule, type Step } from './schedule.ts';

/** What time goes into: a kernel's arithmetic or its memory traffic, dispatching it, and copies of the host. */
export const RESOURCES = ['compute', 'memory', 'dispatches', 'hostCopies'] as const;
export type Resource = (typeof RESOURCES)[number];

/** Resources as a person reads them. */
export const RESOURCE_WORDS: Readonly<Record<Resource, string>> = {
  compute: 'compute',
  memory: 'memory',
  dispatches: 'dispatches',
  hostCopies: 'host copies',
};
export type SecondsByResource = Readonly<Record<Resource, number>>;

/** When each step of a schedule starts and ends, in seconds from the start of the step of training, by the roofline. */
export interface Timeline {
  readonly startSeconds: readonly number[];
  readonly endSeconds: readonly number[];
  readonly totalSeconds: number;
  /** What the total is made of: along the chain of steps of which each waits for the one before, to the last to end. */
  readonly critical: SecondsByResource;
}

/**
 * Runs the lanes against the adapter's rates: a kernel takes the longer of its arithmetic and its memory traffic plus the
 * cost of a dispatch (Williams et al. 2009, the roofline model), a copy its bytes over the host's rate. All ranks do the
 * same, so what a rank collects was published when it published its own. `sharing` ranks on one adapter share its rates,
 * and those of the host that feeds it.
 */
export function estimate(schedule: Pick<Schedule, 'steps'>, profile: AdapterProfile, sharing = 1): Timeline {
  const lastOfLane: Partial<Record<Lane, number>> = {};
  const publishedAt = new Map<number, number>();
  const startSeconds: number[] = [];
  const endSeconds: number[] = [];
  const costs: SecondsByResource[] = [];
  const before: number[] = [];
  const endOf = (id: number) => endSeconds[id] ?? 0;
  for (const [id, step] of schedule.steps.entries()) {
    const { action } = step;
    const awaited = [lastOfLane[step.lane] ?? -1, ...step.waits];
    if (action.type === 'collect') awaited.push(publishedAt.get(action.region) ?? -1);
    const latest = awaited.reduce((a, b) => (endOf(b) > endOf(a) ? b : a));
    const cost = costOf(step, profile, sharing);
    before.push(latest);
    costs.push(cost);
    startSeconds.push(endOf(latest));
    endSeconds.push(endOf(latest) + sum(cost));
    lastOfLane[step.lane] = id;
    if (action.type === 'publish' || action.type === 'announce') publishedAt.set(action.region, id);
  }
  const last = endSeconds.reduce((a, end, id) => (end > endOf(a) ? id : a), 0);
  const critical: Record<Resource, number> = { compute: 0, memory: 0, dispatches: 0, hostCopies: 0 };
  for (let id = last; id >= 0; id = before[id]) for (const r of RESOURCES) critical[r] += costs[id][r];
  return { startSeconds, endSeconds, totalSeconds: endOf(last), critical };
}

/** The resource that most of the time goes into. */
export function boundBy(seconds: SecondsByResource): Resource {
  return RESOURCES.reduce((a, b) => (seconds[b] > seconds[a] ? b : a));
}

function sum(seconds: SecondsByResource): number {
  return RESOURCES.reduce((total, resource) => total + seconds[resource], 0);
}

function costOf({ action }: Step, profile: AdapterProfile, sharing: number): SecondsByResource {
  const cost: Record<Resource, number> = { compute: 0, memory: 0, dispatches: 0, hostCopies: 0 };
  for (const { kernel, params } of dispatches(action)) {
    const { flops, bytes } = kernel.cost(params);
    const [compute, memory] = [flops / profile.flopsPerSecond, bytes / profile.memoryBytesPerSecond];
    if (compute > memory) cost.compute += compute * sharing;
    else cost.memory += memory * sharing;
    cost.dispatches += profile.dispatchSeconds * sharing;
  }
  const bytes = hostBytes(action);
  if (bytes === 0) return cost;
  const copy = profile.copySeconds + bytes / profile.hostBytesPerSecond;
  cost.hostCopies = Math.max(copy * sharing, bytes / linkBytesPerSecond(action));
  return cost;
}

function linkBytesPerSecond(action: Action): number {
  return action.type === 'collect' && action.linkGBps !== null ? action.linkGBps * 1e9 : Number.POSITIVE_INFINITY;
}

function hostBytes(action: Action): number {
  switch (action.type) {
    case 'publish':
      return action.source.bytes;
    case 'collect':
      return action.staging.bytes;
    case 'feed':
      return [...action.inputs, ...action.targets, action.control].reduce((bytes, range) => bytes + range.bytes, 0);
    case 'report':
      return action.control.bytes;
    case 'fetch':
    case 'store':
      return action.staging.bytes;
    case 'dispatch':
    case 'announce':
    case 'free':
      return 0;
  }
}
