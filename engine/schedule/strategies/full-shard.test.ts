import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { demoTransformer } from '../../model/demo-transformer.ts';
import { compileFirst, smallShape } from '../fixtures/small-runs.ts';
import { liveBytes, sumCategories } from '../memory.ts';
import type { Schedule } from '../schedule.ts';
import { unitProgram } from '../unit-program.ts';
import { type FullShardOptions, fullShard } from './full-shard.ts';
import { shardGradOp } from './shard-grad-op.ts';
import type { Gather } from './strategy.ts';

const sizes = { vocabSize: 11, ninp: 6, nhead: 3, nhid: 10, nlayers: 3 };
const model = demoTransformer({ ...sizes, dropout: 0 });
const classes = [...new Set(model.modules.map((m) => m.className))];
const layers = ['TransformerEncoderLayer', 'TransformerDecoderLayer'];
const program = (policy: readonly string[]) => unitProgram(model, smallShape, { rank: 0, seed: 1 }, policy);
const row = { replicate: 1, shard: 2 };
const plan = (options: Partial<FullShardOptions> = {}, policy: readonly string[] = layers) =>
  fullShard(program(policy), row, {
    limitAllGathers: true,
    forwardPrefetch: false,
    backwardPrefetch: 'BACKWARD_PRE',
    ...options,
  });

const anyOptions = fc.record({
  limitAllGathers: fc.boolean(),
  forwardPrefetch: fc.boolean(),
  backwardPrefetch: fc.constantFrom('BACKWARD_PRE' as const, 'BACKWARD_POST' as const, null),
});

describe('gathers', () => {
  it('each unit before its forward and again before its backward, the root once', () => {
    const { groups, gathers, mesh } = plan();
    expect(mesh).toEqual(row);
    const names = (group: string) => gathers.filter((g) => groups[g.groups[0]].name === group).map((g) => g.name);
    expect(names('root')).toEqual(['step']);
    expect(names('transformer.encoder.layers.0')).toEqual(['forward', 'backward']);
    expect(gathers).toHaveLength(1 + 2 * 6);
    // In the order of use: backward goes through the units in reverse.
    const order = (name: string) => gathers.filter((g) => g.name === name).map((g) => groups[g.groups[0]].name);
    expect(order('backward')).toEqual([...order('forward')].reverse());
  });

  it('come before the use, after the free that they await, in one order, for any policy', () => {
    fc.assert(
      fc.property(fc.subarray(classes), anyOptions, (policy, options) => {
        const { gathers } = plan(options, policy);
        gathers.forEach((g, i) => {
          expect(g.issueBeforeVisit).toBeLessThanOrEqual(g.firstVisit);
          expect(g.firstVisit).toBeLessThanOrEqual(g.lastVisit);
          if (i > 0) expect(g.issueBeforeVisit).toBeGreaterThanOrEqual(gathers[i - 1].issueBeforeVisit);
          if (g.afterFreeOf !== null) expect(gathers[g.afterFreeOf].lastVisit).toBeLessThan(g.issueBeforeVisit);
        });
      }),
      { numRuns: 100, seed: 1 },
    );
  });

  it('await the free of the gather before the last with the limiter, none without', () => {
    const limited = plan().gathers.map((g) => g.afterFreeOf);
    expect(limited).toEqual([null, null, null, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    expect(plan({ limitAllGathers: false }).gathers.every((g) => g.afterFreeOf === null)).toBe(true);
  });

  it('BACKWARD_POST awaits the unit before, even without the limiter', () => {
    const { gathers } = plan({ limitAllGathers: false, backwardPrefetch: 'BACKWARD_POST' });
    expect(gathers.filter((g) => g.name === 'backward').map((g) => g.afterFreeOf)).toEqual([6, 7, 8, 9, 10, 11]);
  });
});

describe('forward prefetch', () => {
  const kinds: [string, (forwardPrefetch: boolean) => readonly Gather[]][] = [
    [
      'FULL_SHARD',
      (forwardPrefetch) =>
        plan({ forwardPrefetch, limitAllGathers: false }).gathers.filter((g) => g.name === 'forward'),
    ],
    [
      'SHARD_GRAD_OP',
      (forwardPrefetch) =>
        shardGradOp(program(layers), row, {
          forwardPrefetch,
          limitAllGathers: false,
          syncEveryMicroBatch: false,
        }).gathers.slice(1),
    ],
  ];

  it.each(kinds)('%s: on, a unit is gathered when the forward of the one before begins', (_, forward) => {
    const gathers = forward(true);
    expect(gathers).toHaveLength(6);
    gathers.slice(1).forEach((g, k) => {
      expect(g.issueBeforeVisit, `unit ${k + 1}`).toBe(gathers[k].firstVisit);
      expect(g.issueBeforeVisit).toBeLessThan(g.firstVisit);
    });
  });

  it.each(kinds)('%s: off, nothing holds a gather back', (_, forward) => {
    expect(forward(false).map((g) => g.issueBeforeVisit)).toEqual([0, 0, 0, 0, 0, 0]);
  });

  it.each(['FULL_SHARD', 'SHARD_GRAD_OP'])('%s: the setting reaches the schedule of a run', (shardingStrategy) => {
    const third = 'transformer.encoder.layers.2';
    const second = 'transformer.encoder.layers.1';
    const [on, off] = [true, false].map((forwardPrefetch) => {
      const strategy = { kind: 'fsdp', shardingStrategy, forwardPrefetch, limitAllGathers: false };
      const config = { model: { kind: 'demo-transformer', ...sizes }, strategy };
      const { steps } = compileFirst({ config }).steps[0].schedule;
      const gather = steps.find((s) => s.kind === 'all-gather' && s.unit === third)!.id;
      const computes = (unit: string) => steps.find((s) => s.lane === 'compute' && s.unit === unit)!.id;
      return { gather, first: computes('transformer.encoder.layers.0'), second: computes(second) };
    });
    expect(on.gather).toBeGreaterThan(on.first);
    expect(on.gather).toBeLessThan(on.second);
    expect(off.gather).toBeLessThan(off.first);
  });
});

describe('prefetch', () => {
  const wide = { kind: 'demo-transformer', vocabSize: 50, ninp: 64, nhead: 2, nhid: 256, nlayers: 4 };
  const compiled = (backwardPrefetch: string | null, limitAllGathers = true): Schedule =>
    compileFirst({ config: { model: wide, strategy: { kind: 'fsdp', backwardPrefetch, limitAllGathers } } }).steps[0]
      .schedule;
  const settings = ['BACKWARD_PRE', 'BACKWARD_POST', null] as const;
  const backwardPeak = (schedule: Schedule) => {
    const live = liveBytes(schedule);
    return Math.max(...schedule.steps.filter((s) => s.phase === 'backward').map((s) => sumCategories(live[s.id])));
  };

  it('on, after and off give three schedules', () => {
    const orders = settings.map((setting) =>
      JSON.stringify(compiled(setting).steps.map((s) => [s.label, s.unit, s.waits])),
    );
    expect(new Set(orders).size).toBe(3);
  });

  it('costs the room of a unit: the peak of backward is higher before than after, and than off', () => {
    const [pre, post, off] = settings.map((setting) => backwardPeak(compiled(setting)));
    expect(pre).toBeGreaterThan(post);
    expect(pre).toBeGreaterThan(off);
    expect(post).not.toBe(off);
  });

  it('gathers the next unit before the backward of this one ends, and not on demand', () => {
    const gatherOf = (schedule: Schedule, unit: string) =>
      schedule.steps.find((s) => s.kind === 'all-gather' && s.phase === 'backward' && s.unit === unit)!.id;
    const [last, next] = ['transformer.encoder.layers.3', 'transformer.encoder.layers.2'];
    const firstBackward = (schedule: Schedule) =>
      schedule.steps.find((s) => s.lane === 'compute' && s.phase === 'backward' && s.unit === last)!.id;
    const reduction = (schedule: Schedule) =>
      schedule.steps.find((s) => s.kind === 'reduce-scatter' && s.unit === last)!.id;
    const [pre, post, off] = settings.map((setting) => compiled(setting));
    expect(gatherOf(pre, next)).toBeLessThan(firstBackward(pre));
    expect(gatherOf(post, next)).toBeGreaterThan(firstBackward(post));
    expect(gatherOf(post, next)).toBeLessThan(reduction(post));
    expect(gatherOf(off, next)).toBeGreaterThan(reduction(off));
  });

  it('does not gather a unit a second time while its forward still holds it', () => {
    // The head's forward is followed by its backward.
    const { steps } = compileFirst({ config: { strategy: { kind: 'fsdp', autoWrapPolicy: ['Linear'] } } }).steps[0]
      .schedule;
    const freed = steps.find((s) => s.kind === 'free' && s.unit === 'decoder' && s.phase === 'forward')!.id;
    const again = steps.find((s) => s.kind === 'all-gather' && s.unit === 'decoder' && s.phase === 'backward')!.id;
    expect(again).toBeGreaterThan(freed);
  });
});

describe('one rank', () => {
  it('moves nothing under either strategy, and pays for no shard', () => {
    for (const strategy of ['ddp', 'fsdp']) {
      const { memory, shards, regions, steps } = compileFirst({ config: { devices: 1, strategy } });
      expect(shards).toEqual({ count: 1, index: 0 });
      expect(regions.map((r) => r.name)).toEqual(['report']);
      expect(steps[0].schedule.steps.filter((s) => s.lane === 'comm')).toEqual([]);
      expect(memory.reservedBytes).toBeGreaterThan(0);
    }
  });
});
