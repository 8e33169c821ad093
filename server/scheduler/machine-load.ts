import { readFileSync } from 'node:fs';

/** Where the time of all cores has gone so far, in the kernel's ticks. */
export interface CoreTicks {
  readonly total: number;
  readonly idle: number;
  /** Of this process and of the processes that it started and that have ended. */
  readonly own: number;
}

/**
 * The cores' time as Linux counts it (proc(5)): of the whole machine, what other virtual machines took from it included.
 * Null where it cannot be read; then nothing is said of the load.
 */
export function readCoreTicks(): CoreTicks | null {
  try {
    const [line] = readFileSync('/proc/stat', 'utf8').split('\n', 1);
    // cpu user nice system idle iowait irq softirq steal; what guests take is counted under user.
    const ticks = line.trim().split(/\s+/).slice(1, 9).map(Number);
    const stat = readFileSync('/proc/self/stat', 'utf8');
    // The second field is a name in brackets, which may hold anything; utime is the 14th.
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    const own = fields.slice(11, 15).map(Number);
    const sum = (values: readonly number[]) => values.reduce((a, b) => a + b, 0);
    const read = { total: sum(ticks), idle: ticks[3] + ticks[4], own: sum(own) };
    return Object.values(read).every(Number.isFinite) ? read : null;
  } catch {
    return null;
  }
}

/** What others may take of all cores' time for what is measured meanwhile to count: a desktop at rest takes less. */
export const QUIET_SHARE = 0.15;

/** Between two readings, the share of all cores' time that others than this process took, from 0 to 1; 0 where it is not known. */
export function shareOfOthers(before: CoreTicks | null, after: CoreTicks | null): number {
  if (!before || !after || after.total <= before.total) return 0;
  const busy = after.total - before.total - (after.idle - before.idle);
  const others = busy - (after.own - before.own);
  return Math.min(1, Math.max(0, others / (after.total - before.total)));
}
