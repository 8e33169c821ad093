import type { AdapterProfile } from './profile.ts';
import { dispatches, type Lane, type Schedule, type Step } from './schedule.ts';

/** When each step of a schedule starts and ends, in seconds from the start of the step of training, by the roofline. */
export interface Timeline {
  readonly startSeconds: readonly number[];
  readonly endSeconds: readonly number[];
  readonly totalSeconds: number;
}

/**
 * Runs the lanes against the adapter's rates: a kernel takes the longer of its arithmetic and its memory traffic plus the
 * cost of a dispatch (Williams et al. 2009, the roofline model), a copy its bytes over the host's rate. All lanes of a
 * device share its queue, so compute and placement add up; the host's copying overlaps.
 */
export function estimate(schedule: Pick<Schedule, 'steps'>, profile: AdapterProfile): Timeline {
  const laneFree: Record<Lane, number> = { compute: 0, comm: 0, host: 0 };
  const startSeconds: number[] = [];
  const endSeconds: number[] = [];
  for (const step of schedule.steps) {
    const waited = step.waits.reduce((latest, wait) => Math.max(latest, endSeconds[wait]), 0);
    const start = Math.max(laneFree[step.lane], waited);
    const end = start + stepSeconds(step, profile);
    startSeconds.push(start);
    endSeconds.push(end);
    laneFree[step.lane] = end;
  }
  return { startSeconds, endSeconds, totalSeconds: Math.max(0, ...Object.values(laneFree)) };
}

function stepSeconds({ action }: Step, profile: AdapterProfile): number {
  const device = dispatches(action).reduce((sum, { kernel, params }) => {
    const { flops, bytes } = kernel.cost(params);
    const roof = Math.max(flops / profile.flopsPerSecond, bytes / profile.memoryBytesPerSecond);
    return sum + roof + profile.dispatchSeconds;
  }, 0);
  const rate = Math.min(profile.hostBytesPerSecond, linkBytesPerSecond(action));
  return device + hostBytes(action) / rate;
}

function linkBytesPerSecond(action: Step['action']): number {
  return action.type === 'collect' && action.linkGBps !== null ? action.linkGBps * 1e9 : Number.POSITIVE_INFINITY;
}

function hostBytes(action: Step['action']): number {
  switch (action.type) {
    case 'publish':
      return action.source.bytes;
    case 'collect':
      return action.staging.bytes;
    case 'feed':
      return [...action.inputs, ...action.targets, action.control].reduce((sum, range) => sum + range.bytes, 0);
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
