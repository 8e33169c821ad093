import { describe, expect, it } from 'vitest';
import {
  alignColumn,
  fullestRank,
  median,
  nonFiniteLosses,
  scaleAfterFirst,
  stack,
  stepTimesOf,
  unionOfSteps,
} from './chart-data.ts';
import { appendEvents, emptyRunLog, type SequencedEvent } from './run-log.ts';

const step = (
  seq: number,
  rank: number,
  number: number,
  loss: number | 'NaN',
  peakBytes: number,
  liveBytes: number,
): SequencedEvent => ({
  seq,
  event: 'step',
  rank,
  step: number,
  loss,
  lossMean: loss,
  gradNorm: 1,
  iterationMs: 1,
  tokens: 1,
  memory: {
    currentBytes: peakBytes,
    peakBytes,
    liveBytes,
    byCategory: {
      parameters: liveBytes,
      gathered: 0,
      gradients: 0,
      optimizer: 0,
      activations: 0,
      workspace: 0,
      staging: 0,
    },
    hostBytes: 0,
    allocRetries: 0,
    ooms: 0,
  },
});

describe('what charts draw', () => {
  it('takes the steps of all ranks, whether one is behind or they differ', () => {
    expect(unionOfSteps([{ step: [0, 1, 2] }, { step: [0, 1] }, { step: [] }])).toEqual([0, 1, 2]);
    expect(unionOfSteps([{ step: [0, 2] }, { step: [1, 2, 3] }])).toEqual([0, 1, 2, 3]);
    expect(unionOfSteps([])).toEqual([]);
  });

  it('leaves gaps for missing and for non-finite values', () => {
    expect(alignColumn([0, 1, 2, 3], [0, 2, 3], [5, Number.POSITIVE_INFINITY, 7])).toEqual([5, null, null, 7]);
  });

  it('stacks from the first column', () => {
    expect(
      stack([
        [1, null, null],
        [2, 2, null],
      ]),
    ).toEqual([
      [1, null, null],
      [3, 2, null],
    ]);
  });

  it('finds the losses that it cannot draw, and the fullest rank', () => {
    const log = emptyRunLog();
    appendEvents(log, [
      step(1, 0, 0, 4, 10, 5),
      step(2, 1, 0, 'NaN', 12, 9),
      step(3, 0, 1, 'NaN', 10, 5),
      step(4, 1, 1, 3, 12, 7),
    ]);
    expect(nonFiniteLosses(log, 9)).toEqual([
      { step: 0, rank: 1, word: 'NaN' },
      { step: 1, rank: 0, word: 'NaN' },
    ]);
    expect(fullestRank(log)).toMatchObject({ rank: 1, peakBytes: 12, liveBytes: 9 });
    expect(fullestRank(emptyRunLog())).toBeNull();
  });

  it('takes the median', () => {
    expect([median([]), median([3, 1, 2]), median([4, 1, 2, 3])]).toEqual([null, 2, 2.5]);
  });

  it('leaves a towering first step off the scale, and only that', () => {
    expect(
      scaleAfterFirst([
        [900, 100, 90],
        [800, 80, 70],
      ]),
    ).toEqual({ maxY: 125, firstMs: 900 });
    expect(scaleAfterFirst([[150, 100, 90]])).toBeNull();
    expect(scaleAfterFirst([[900, 100]])).toBeNull();
    expect(scaleAfterFirst([])).toBeNull();
  });
});

it('times each whole step by its slowest rank, the first apart', () => {
  const log = emptyRunLog();
  expect(stepTimesOf(log)).toBeNull();
  const timed = (seq: number, rank: number, number: number, iterationMs: number) => ({
    ...step(seq, rank, number, 4, 1, 1),
    iterationMs,
  });
  // Step 3 is still going on rank 1.
  const times = [
    [900, 10, 30, 5],
    [800, 20, 10],
  ];
  let seq = 0;
  for (const [rank, of] of times.entries())
    for (const [number, ms] of of.entries()) appendEvents(log, [timed(++seq, rank, number, ms) as SequencedEvent]);
  expect(stepTimesOf(log)).toEqual({ medianMs: 25, minMs: 20, maxMs: 30, steps: 2 });
});
