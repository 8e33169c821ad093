import { describe, expect, it } from 'vitest';
import type { Comparison } from '../../server/contract.ts';
import { comparisonCsv, differingFields } from './comparison-table.ts';

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
  lossMeans,
  lossStride: 1,
});

const comparison: Comparison = {
  runs: [
    run('a', { devices: 2, strategy: { kind: 'ddp', bucketCapMiB: 25 } }, [4, 3]),
    run('b', { devices: 2, strategy: { kind: 'fsdp', autoWrapPolicy: ['X', 'Y'] } }, ['NaN']),
  ],
  timedSteps: { first: 1, last: 9, count: 9 },
  differing: ['strategy', 'strategy.kind'],
};

describe('a comparison', () => {
  it('lists what differs, field by field, once', () => {
    expect(differingFields(comparison)).toEqual([
      { path: 'strategy.kind', values: ['ddp', 'fsdp'] },
      { path: 'strategy.bucketCapMiB', values: ['25', '–'] },
      { path: 'strategy.autoWrapPolicy', values: ['–', 'X, Y'] },
    ]);
  });

  it('exports every number as it is', () => {
    const [head, first, , , lossHead, step0, step1] = comparisonCsv(comparison).split('\r\n');
    expect(head).toMatch(/^run,id,state,.*strategy\.kind/);
    expect(first).toMatch(/^run a,a,running,ddp,2,auto,2,1000,,/);
    expect(first).toContain(',12.5,1 to 9,3');
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
