import { describe, expect, it } from 'vitest';
import type { StepEvent } from '../../engine/trainer/events.ts';
import { RunTotals } from './run-totals.ts';

const step = (rank: number, number: number, iterationMs: number, liveBytes = 100): StepEvent => ({
  event: 'step',
  rank,
  step: number,
  loss: 1,
  lossMean: number === 2 ? 'NaN' : 5 - number,
  gradNorm: 1,
  iterationMs,
  tokens: 1,
  memory: {
    currentBytes: 1,
    peakBytes: 1000 + rank,
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

describe('RunTotals', () => {
  it('is empty before the first step', () => {
    const totals = new RunTotals(2);
    expect([totals.stepsDone, totals.lossMean, totals.iterationMs(true), totals.peakBytes]).toEqual([
      0,
      null,
      null,
      null,
    ]);
  });

  it('takes the slowest rank of each step, the median of all but the first, and the fullest rank', () => {
    const totals = new RunTotals(2);
    const times = [
      [900, 950],
      [10, 12],
      [20, 11],
      [14, 15],
    ];
    for (const [number, [a, b]] of times.entries()) {
      totals.add(step(0, number, a, number === 1 ? 300 : 100));
      totals.add(step(1, number, b));
    }
    expect(totals.iterationMs(true)).toBe(15); // of 12, 20, 15
    expect(totals.stepsDone).toBe(4);
    expect(totals.lossMean).toBe(2);
    expect(totals.peakBytes).toBe(1001);
    expect(totals.liveBytes).toBe(300);
    expect(totals.byCategory?.parameters).toBe(300);
  });

  it('leaves the first step of a resumed run out too', () => {
    const totals = new RunTotals(1);
    totals.add(step(0, 50, 900));
    totals.add(step(0, 51, 10));
    expect(totals.iterationMs(true)).toBe(10);
    expect(totals.stepsDone).toBe(52);
  });

  it('gives the exact median of many', () => {
    const totals = new RunTotals(1);
    for (let number = 0; number <= 1000; number++) {
      totals.add(step(0, number, number));
      totals.iterationMs(false);
    }
    expect(totals.iterationMs(true)).toBe(500.5);
  });
});
