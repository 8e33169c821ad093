import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { RankTrace } from '../trainer/rank-trace.ts';
import { listTraces, readTraces, stepToTrace, writeRankTrace } from './trace-files.ts';

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'traces-'));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

const traceOf = (rank: number, step: number, startMs = 0): RankTrace => ({
  rank,
  world: 2,
  step,
  startMs,
  computeClock: { kind: 'host' },
  steps: [],
  waits: [],
  live: [],
});

describe('traces in a run’s folder', () => {
  it('are listed once all ranks have written theirs, and read as they were', async () => {
    expect(await listTraces(folder, 2)).toEqual([]);
    for (const [rank, step] of [
      [0, 12],
      [1, 12],
      [0, 2],
      [1, 2],
      [1, 30],
    ])
      await writeRankTrace(folder, traceOf(rank, step));
    expect(await listTraces(folder, 2)).toEqual([2, 12]);
    expect(await readTraces(folder, 2, 12)).toEqual([traceOf(0, 12), traceOf(1, 12)]);
    await expect(readTraces(folder, 2, 30)).rejects.toMatchObject({ code: 'not-found' });
  });

  it('replace an older one of their step; ranks that a run does not have do not count', async () => {
    for (const rank of [0, 1, 2]) await writeRankTrace(folder, traceOf(rank, 2));
    for (const rank of [0, 1]) await writeRankTrace(folder, traceOf(rank, 2, 5));
    expect(await listTraces(folder, 2)).toEqual([2]);
    expect((await readTraces(folder, 2, 2)).map(({ startMs }) => startMs)).toEqual([5, 5]);
  });

  it('that are no traces are named', async () => {
    await writeRankTrace(folder, traceOf(0, 2));
    await writeFile(join(folder, 'traces', 'step-000002.rank-1.json'), '{"rank": 1}');
    await expect(readTraces(folder, 2, 2)).rejects.toMatchObject({
      code: 'bad-file',
      message: expect.stringContaining('step-000002.rank-1.json'),
    });
  });
});

describe('the step to trace', () => {
  it('is the third that the run makes, the last of fewer, or the one asked for', () => {
    expect(stepToTrace(undefined, 0, 10)).toBeNull();
    expect(stepToTrace({ step: null }, 0, 10)).toBe(2);
    expect(stepToTrace({ step: null }, 0, 2)).toBe(1);
    // After a resume.
    expect(stepToTrace({ step: null }, 20, 30)).toBe(22);
    expect(stepToTrace({ step: 29 }, 20, 30)).toBe(29);
    for (const step of [19, 30]) expect(() => stepToTrace({ step }, 20, 30)).toThrow(/this run makes steps 20 to 29/);
  });
});
