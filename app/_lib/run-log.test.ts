import { describe, expect, it } from 'vitest';
import type { StepEvent } from '../../engine/trainer/events.ts';
import { appendEvents, emptyRunLog, type SequencedEvent } from './run-log.ts';

const step = (seq: number, number: number, rank = 0, loss: StepEvent['loss'] = 4): SequencedEvent => ({
  seq,
  event: 'step',
  rank,
  step: number,
  loss,
  lossMean: loss,
  gradNorm: 1,
  iterationMs: 10,
  tokens: 35,
  memory: {
    currentBytes: 70,
    peakBytes: 80,
    liveBytes: 28,
    byCategory: {
      parameters: 1,
      gathered: 2,
      gradients: 3,
      optimizer: 4,
      activations: 5,
      workspace: 6,
      staging: 7,
    },
    hostBytes: 9,
    allocRetries: 0,
    ooms: 0,
  },
});

describe('a run log', () => {
  it('takes each event once, whatever pages overlap', () => {
    const log = emptyRunLog();
    expect(appendEvents(log, [step(1, 0), step(2, 1)])).toBe(2);
    expect(appendEvents(log, [step(1, 0), step(2, 1), step(3, 2)])).toBe(1);
    expect(log.ranks.get(0)?.step).toEqual([0, 1, 2]);
    expect(log.lastSeq).toBe(3);
  });

  it('stops before a hole, so that the next pull fills it', () => {
    const log = emptyRunLog();
    expect(appendEvents(log, [step(1, 0), step(3, 2)])).toBe(1);
    expect(log.lastSeq).toBe(1);
    expect(appendEvents(log, [step(2, 1), step(3, 2)])).toBe(2);
    expect(log.ranks.get(0)?.step).toEqual([0, 1, 2]);
  });

  it('keeps words for numbers that are not finite as such numbers', () => {
    const log = emptyRunLog();
    appendEvents(log, [step(1, 0, 0, 'NaN'), step(2, 1, 0, '-Infinity')]);
    expect(log.ranks.get(0)?.loss).toEqual([Number.NaN, Number.NEGATIVE_INFINITY]);
  });

  it('files memory by category in the one order', () => {
    const log = emptyRunLog();
    appendEvents(log, [step(1, 0)]);
    expect(log.ranks.get(0)?.byCategory.map((column) => column[0])).toEqual([1, 2, 3, 4, 5, 6, 7]);
  });

  it('replaces the steps that a resumed run reports again', () => {
    const log = emptyRunLog();
    appendEvents(log, [step(1, 0), step(2, 1), step(3, 2), step(4, 1, 0, 3)]);
    expect(log.ranks.get(0)?.step).toEqual([0, 1]);
    expect(log.ranks.get(0)?.loss).toEqual([4, 3]);
    expect(log.ranks.get(0)?.byCategory.map((column) => column.length)).toEqual([2, 2, 2, 2, 2, 2, 2]);
  });

  it('bounds the lines it keeps and counts those let go', () => {
    const log = emptyRunLog();
    appendEvents(
      log,
      Array.from({ length: 5010 }, (_, i) => ({ seq: i + 1, event: 'log' as const, rank: null, line: `${i}` })),
    );
    expect(log.lines.length).toBe(5000);
    expect(log.linesDropped).toBe(10);
    expect(log.lines[0].line).toBe('10');
  });
});
