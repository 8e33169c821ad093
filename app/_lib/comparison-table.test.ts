import { describe, expect, it } from 'vitest';
import type { Comparison } from '../../server/contract.ts';
import { commonLosses, comparisonCsv, differingFields } from './comparison-table.ts';

const run = (id: string, config: unknown, lossMeans: (number | 'NaN')[]): Comparison['runs'][number] => ({
  run: {
    id,
    name: `run ${id}`,
    state: 'running',
    reason: '',
    createdAt: '',
    startedAt: null,
    endedAt: null,
    group: null,
    strategy: 'ddp',
    devices: 2,
    adapter: 'auto',
    steps: 10,
    stepsDone: lossMeans.length,
    lastSeq: 1,
    lossMean: null,
    iterationMs: null,
    peakBytes: null,
  },
  config,
  peakBytes: 1000,
  liveBytes: null,
  byCategory: null,
  iterationMs: 12.5,
  iterationSpread: { minMs: 10, maxMs: 20, steps: 9 },
  lossMeans,
  lossStride: 1,
  lossFrom: 0,
});

const comparison: Comparison = {
  runs: [
    run('a', { name: 'one', devices: 2, strategy: { kind: 'ddp', bucketCapMiB: 25 } }, [4, 3]),
    run('b', { name: 'two', devices: 2, strategy: { kind: 'fsdp', autoWrapPolicy: ['X', 'Y'] } }, ['NaN']),
  ],
  timedSteps: { first: 1, last: 9, count: 9 },
  differing: ['strategy', 'strategy.kind'],
};

describe('a comparison', () => {
  it('lists what differs, field by field, once; what decides no figure stands apart', () => {
    const { telling, aside } = differingFields(comparison);
    expect(telling).toEqual([
      { path: 'strategy.kind', values: ['ddp', 'fsdp'] },
      { path: 'strategy.autoWrapPolicy', values: ['–', 'X, Y'] },
    ]);
    // DDP's bucket size is its default: it comes with the strategy.
    expect(aside).toEqual([
      { path: 'strategy.bucketCapMiB', values: ['25', '–'] },
      { path: 'name', values: ['one', 'two'] },
    ]);
    const saving = run('c', { devices: 2, checkpoint: { every: 5, resume: null } }, []);
    const resuming = run('d', { devices: 2, checkpoint: { every: 2, resume: 'runs/x/step-000002' } }, []);
    const two = { ...comparison, runs: [saving, resuming], differing: ['checkpoint.every', 'checkpoint.resume'] };
    expect(differingFields(two).telling.map(({ path }) => path)).toEqual(['checkpoint.resume']);
    expect(differingFields(two).aside.map(({ path }) => path)).toEqual(['checkpoint.every']);
  });

  it('compares losses only at the steps that all have, and says how many these are', () => {
    const [a] = comparison.runs;
    const of = (lossMeans: (number | 'NaN')[], lossFrom = 0, lossStride = 1) => ({
      ...a,
      lossMeans,
      lossFrom,
      lossStride,
    });
    expect(commonLosses([of([4, 3, 2]), of([4, 3])])).toEqual({ steps: 2, last: 1, atLast: [3, 3], equal: true });
    expect(commonLosses([of([4, 3, 2]), of([4, 5])])).toMatchObject({ equal: false });
    // A resumed run begins later; a very long one has every other step.
    expect(commonLosses([of([4, 3, 2, 1]), of([2, 1], 2)])).toMatchObject({ steps: 2, last: 3, equal: true });
    expect(commonLosses([of([4, 3, 2, 1, 0]), of([4, 2, 0], 0, 2)])).toMatchObject({ steps: 3, last: 4, equal: true });
    expect(commonLosses([of(['NaN']), of(['NaN']), of([])])).toEqual({
      steps: 1,
      last: 0,
      atLast: ['NaN', 'NaN', null],
      equal: true,
    });
    expect(commonLosses([of([4]), of([])])).toBeNull();
    expect(commonLosses([of([4]), of([4], 7)])).toBeNull();
  });

  it('exports every number as it is', () => {
    const [head, first, , , lossHead, step0, step1] = comparisonCsv(comparison).split('\r\n');
    expect(head).toMatch(/^run,id,state,.*strategy\.kind/);
    expect(first).toMatch(/^run a,a,running,ddp,2,auto,2,1000,,/);
    expect(first).toContain(',12.5,10,20,1 to 9,3');
    expect(lossHead).toBe('step,mean loss of run a,mean loss of run b');
    expect([step0, step1]).toEqual(['0,4,NaN', '1,3,']);
  });

  it('says of each run over which simulated link it ran, where one did', () => {
    expect(comparisonCsv(comparison)).not.toContain('simulated link');
    const [plain] = comparison.runs;
    const linked = run('c', { strategy: { kind: 'fsdp', shardingStrategy: 'HYBRID_SHARD', linkGBps: 2.5 } }, [4]);
    const [head, first, second] = comparisonCsv({ ...comparison, runs: [plain, linked], differing: [] }).split('\r\n');
    const column = head.split(',').indexOf('simulated link (GB/s)');
    expect([first, second].map((line) => line.split(',')[column])).toEqual(['', '2.5']);
  });
});
