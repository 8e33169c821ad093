import { expect, it } from 'vitest';
import type { StepEvent } from '../../engine/trainer/events.ts';
import { commonMedians, StepTimes } from './step-times.ts';

/** A run whose ranks take these times, by rank, from step `from` on. */
function run(times: readonly (readonly number[])[], from = 0): StepTimes {
  const of = new StepTimes(times.length);
  for (const ranks of times)
    for (const [i, iterationMs] of ranks.entries()) of.add({ step: from + i, iterationMs } as StepEvent);
  return of;
}

it('takes the slowest rank of each whole step after the first', () => {
  expect([
    ...run([
      [100, 5, 6, 7],
      [90, 8, 2],
    ]).byStep,
  ]).toEqual([
    [1, 8],
    [2, 6],
  ]);
});

it('medians are over the steps that all runs have, whichever have more', () => {
  const long = run([[100, 1, 2, 3, 50, 60, 70, 80]]);
  const short = run([[100, 4, 5, 6]]);
  expect(commonMedians([long, short])).toEqual({
    medianMs: [2, 5],
    spread: [
      { minMs: 1, maxMs: 3, steps: 3 },
      { minMs: 4, maxMs: 6, steps: 3 },
    ],
    steps: { first: 1, last: 3, count: 3 },
  });
});

it('a run that has no step yet takes none from the others', () => {
  expect(commonMedians([run([[9, 1, 3]]), run([[]])])).toEqual({
    medianMs: [2, null],
    spread: [{ minMs: 1, maxMs: 3, steps: 2 }, null],
    steps: { first: 1, last: 2, count: 2 },
  });
  expect(commonMedians([run([[]])])).toEqual({ medianMs: [null], spread: [null], steps: null });
});

it('runs without a step in common have their own', () => {
  const { medianMs, spread, steps } = commonMedians([run([[9, 1, 3]]), run([[9, 5, 7, 9]], 10)]);
  expect([medianMs, steps]).toEqual([[2, 7], null]);
  expect(spread.map((of) => of?.steps)).toEqual([2, 3]);
});
