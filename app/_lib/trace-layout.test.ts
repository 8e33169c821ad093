import { describe, expect, it } from 'vitest';
import type { RankTrace } from '../../engine/trainer/rank-trace.ts';
import {
  layoutTrace,
  liveAt,
  moveByKey,
  ROW_PX,
  sharesOf,
  sliceAt,
  ticksOf,
  uncoveredUntilMs,
} from './trace-layout.ts';

const step = (lane: 'compute' | 'comm' | 'host', label: string, startMs: number, endMs: number, kind = 'compute') => ({
  lane,
  label,
  kind,
  unit: 'root',
  phase: startMs < 5 ? 'forward' : 'backward',
  startMs,
  endMs,
  liveBytes: 100,
});

const trace = (rank: number, startMs: number): RankTrace => ({
  rank,
  world: 2,
  step: 2,
  startMs,
  computeClock: { kind: 'host' },
  steps: [
    step('host', 'batch', 0, 1, 'upload'),
    step('comm', 'all-gather root', 1, 3, 'all-gather'),
    step('compute', 'matmul', 3, 4),
    step('compute', 'matmul', 6, 8),
    step('compute', 'free root', 8, 8, 'free'),
  ],
  waits: [
    { step: 1, for: `rank ${1 - rank}`, startMs: 1.5, endMs: 2.5 },
    { step: 2, for: 'step 1, all-gather root (comm)', startMs: 0, endMs: 3 },
    { step: 3, for: 'step 1, all-gather root (comm)', startMs: 4, endMs: 6 },
  ],
  live: [
    { atMs: 0, byCategory: [10, 0, 0, 0, 0, 0, 0] },
    { atMs: 3, byCategory: [10, 30, 0, 0, 0, 0, 0] },
    { atMs: 8, byCategory: [10, 0, 0, 0, 0, 0, 0] },
  ],
});

const layout = layoutTrace([trace(0, 1000), trace(1, 1002)]);
const labelAt = (place: { row: number; index: number } | null) => {
  if (!place) return null;
  const { rank, slices } = layout.rows[place.row];
  const { kind, step: id } = slices[place.index];
  return `${rank} ${kind} ${id}`;
};

describe('a trace as it is drawn', () => {
  it('has the lanes of each rank one below the other, on one time axis', () => {
    expect(layout.rows.map(({ rank, label }) => [rank, label])).toEqual([
      [0, 'compute'],
      [0, 'comm'],
      [0, 'host'],
      [1, 'compute'],
      [1, 'comm'],
      [1, 'host'],
    ]);
    expect(layout.totalMs).toBe(10);
    // Of the later rank all is 2 ms later.
    expect(layout.rows[5].slices[0]).toMatchObject({ startMs: 2, endMs: 3 });
    const tops = layout.rows.map(({ topPx }) => topPx);
    expect([...tops].sort((a, b) => a - b)).toEqual(tops);
    expect(layout.ranks[1].topPx).toBeGreaterThan(layout.ranks[0].liveTopPx);
    expect(layout.ranks[0].phases).toEqual([
      { label: 'forward', startMs: 3, endMs: 4 },
      { label: 'backward', startMs: 6, endMs: 8 },
    ]);
  });

  it('finds what is under the pointer: the wait inside a step before the step, and what is near', () => {
    const [compute, comm] = layout.rows;
    const at = (topPx: number, ms: number, withinMs = 0) => labelAt(sliceAt(layout, topPx + ROW_PX / 2, ms, withinMs));
    expect(at(comm.topPx, 1.2)).toBe('0 step 1');
    expect(at(comm.topPx, 2)).toBe('0 wait 1');
    expect(at(compute.topPx, 5)).toBe('0 wait 3');
    expect(at(comm.topPx, 3.2)).toBeNull();
    expect(at(comm.topPx, 3.2, 0.5)).toBe('0 step 1');
    expect(at(layout.ranks[0].liveTopPx, 2)).toBeNull();
  });

  it('is moved through with the keys, along a lane and from lane to lane', () => {
    const path = ['ArrowRight', 'ArrowRight', 'End', 'ArrowRight', 'ArrowDown', 'ArrowDown', 'ArrowUp', 'Home'];
    const seen: (string | null)[] = [];
    path.reduce<{ row: number; index: number } | null>((place, key) => {
      const next = moveByKey(layout, place, key);
      seen.push(labelAt(next));
      return next;
    }, null);
    expect(seen).toEqual([
      '0 wait 2',
      '0 step 2',
      '0 step 4',
      '0 step 4',
      '0 step 1',
      '0 step 0',
      '0 step 1',
      '0 step 1',
    ]);
    expect(moveByKey(layout, null, 'a')).toBeNull();
  });

  it('knows what is live at a moment, and where the time of a rank went', () => {
    expect(liveAt(layout.ranks[0], 2.9)[1]).toBe(0);
    expect(liveAt(layout.ranks[0], 3)[1]).toBe(30);
    expect(layout.ranks[0].mostLiveBytes).toBe(40);
    expect(sharesOf(trace(0, 0))).toEqual({
      compute: [{ label: 'matmul', ms: 3, times: 2 }],
      waits: [{ label: 'all-gather (comm)', ms: 5, times: 2 }],
      busyMs: 3,
      waitMs: 5,
    });
  });

  it('has round moments on its axis, in any zoom', () => {
    expect(ticksOf(0, 10, 5)).toEqual([0, 2, 4, 6, 8, 10]);
    expect(ticksOf(3.3, 4.1, 4).map((ms) => ms.toFixed(1))).toEqual(['3.4', '3.6', '3.8', '4.0']);
  });
});

it('a slice’s name ends where the first slice that is seen over it begins', () => {
  const [row] = layoutTrace([trace(0, 100), trace(1, 100)]).rows.filter(({ label }) => label === 'comm');
  const gather = row.slices.findIndex(({ kind }) => kind === 'step');
  expect(uncoveredUntilMs(row, gather, 0.1)).toBe(1.5);
  // The wait inside of it is too short to be seen.
  expect(uncoveredUntilMs(row, gather, 2)).toBe(3);
  expect(uncoveredUntilMs(row, gather + 1, 0.1)).toBe(2.5);
  const brief = { ...row.slices[gather], kind: 'wait' as const, for: 'x', startMs: 1.2, endMs: 1.25, inside: true };
  const twice = { ...row, slices: [row.slices[gather], brief, row.slices[gather + 1]] };
  expect(uncoveredUntilMs(twice, 0, 0.1)).toBe(1.5);
});
