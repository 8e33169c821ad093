/** Times of one thing measured several times, in milliseconds. */
export interface Times {
  readonly medianMs: number;
  readonly minMs: number;
  readonly maxMs: number;
  readonly runs: number;
}

/**
 * Times `work` after `warmUps` runs that do not count.
 *
 * @param runs at least 1; an odd number has one run as its median
 */
export async function measure(work: () => unknown, runs: number, warmUps = 1): Promise<Times> {
  for (let i = 0; i < warmUps; i++) await work();
  const times: number[] = [];
  for (let i = 0; i < runs; i++) {
    const started = performance.now();
    await work();
    times.push(performance.now() - started);
  }
  return timesOf(times);
}

/** The figures of a list of times in milliseconds. Throws RangeError on an empty list. */
export function timesOf(timesMs: readonly number[]): Times {
  if (timesMs.length === 0) throw new RangeError('no time was measured');
  const sorted = [...timesMs].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  const medianMs = sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  return { medianMs, minMs: sorted[0], maxMs: sorted[sorted.length - 1], runs: sorted.length };
}

/** Two things measured in turns, so that what else the machine does falls on both alike. */
export interface Comparison {
  readonly first: Times;
  readonly second: Times;
  /** Median of first / median of second: above 1 where the second is faster. */
  readonly ratio: number;
}

/** Measures two things in turns, `runs` times each after one run of each that does not count. */
export async function compare(first: () => unknown, second: () => unknown, runs: number): Promise<Comparison> {
  const times: [number[], number[]] = [[], []];
  for (let run = -1; run < runs; run++) {
    for (const [i, work] of [first, second].entries()) {
      const { medianMs } = await measure(work, 1, 0);
      if (run >= 0) times[i].push(medianMs);
    }
  }
  const [a, b] = [timesOf(times[0]), timesOf(times[1])];
  return { first: a, second: b, ratio: a.medianMs / b.medianMs };
}

/** One line: "name  median 12.3 ms (11.9 to 14.0, 9 runs)". */
export function line(name: string, { medianMs, minMs, maxMs, runs }: Times): string {
  const ms = (value: number) => (value < 100 ? value.toPrecision(3) : value.toFixed(0));
  return `${name.padEnd(40)} median ${ms(medianMs)} ms (${ms(minMs)} to ${ms(maxMs)}, ${runs} runs)`;
}
