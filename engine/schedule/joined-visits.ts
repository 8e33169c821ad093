import type { AdapterProfile } from './profile.ts';
import { kernelClass } from './rates.ts';
import { computeVisits, dispatches, type Step } from './schedule.ts';

/** Dispatches of one submit, at most: the host encodes as many while the device runs the submit before. */
const MOST_DISPATCHES = 64;
/** The device's time from which on what lies between two submits is nothing beside one. */
const LONG_SECONDS = 5e-3;

/**
 * Visits that need nothing of other lanes and whose results no other lane waits for, several a submit, since a device idles
 * between two submits for as long as one or two small kernels take. Each submit has at most twice the dispatches of the one
 * before, so that the first begin at once and the host stays ahead. Software has no such gap.
 */
export function withJoinedVisits(steps: readonly Step[], profile: AdapterProfile): Step[] {
  if (profile.software) return [...steps];
  const awaited = new Set(steps.flatMap(({ waits }) => waits));
  const seconds = (step: Step) =>
    dispatches(step.action).reduce((sum, { kernel, params }) => {
      const { flops, bytes } = kernel.cost(params);
      const rate = profile.kernels[kernelClass(kernel, params)];
      return sum + rate.seconds + Math.max(flops / rate.flopsPerSecond, bytes / rate.bytesPerSecond);
    }, 0);
  const joined = new Map<number, number>();
  let open: Submit | null = null;
  let before = 0;
  for (const visit of computeVisits(steps)) {
    const next: Submit = {
      visit: visit[0].visit,
      dispatches: visit.reduce((sum, { action }) => sum + dispatches(action).length, 0),
      seconds: visit.reduce((sum, step) => sum + seconds(step), 0),
      isAwaited: visit.some(({ id }) => awaited.has(id)),
    };
    const waits = visit.some((step) => step.waits.length > 0);
    const both: Submit | null = open && !waits && !open.isAwaited ? together(open, next) : null;
    if (both && fits(both, before)) open = both;
    else {
      before = open?.dispatches ?? 0;
      open = next;
    }
    joined.set(next.visit, open.visit);
  }
  return steps.map((step) => (step.lane === 'compute' ? { ...step, visit: joined.get(step.visit)! } : step));
}

interface Submit {
  readonly visit: number;
  readonly dispatches: number;
  readonly seconds: number;
  readonly isAwaited: boolean;
}

const together = (open: Submit, next: Submit): Submit => ({
  visit: open.visit,
  dispatches: open.dispatches + next.dispatches,
  seconds: open.seconds + next.seconds,
  isAwaited: next.isAwaited,
});

/** Whether visits of so much go to the device at once, after a submit of `before` dispatches. */
function fits({ dispatches, seconds }: Submit, before: number): boolean {
  return dispatches <= Math.min(2 * before, MOST_DISPATCHES) && seconds <= LONG_SECONDS;
}
