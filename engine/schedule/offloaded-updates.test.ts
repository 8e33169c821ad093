import { describe, expect, it } from 'vitest';
import { interleave, randomChoice } from './fixtures/interleaving.ts';
import { compileFirst, compileRanks, smallModel } from './fixtures/small-runs.ts';
import { tiedModel } from './fixtures/tied-model.ts';
import { builtInProfiles } from './profile.ts';
import type { Schedule } from './schedule.ts';

/** Updates of what is kept on the host, as steps: what travels, and that nobody reads what has been updated already. */

const offload = (settings: object = {}) => ({ kind: 'fsdp', cpuOffload: true, ...settings });

/** Bytes that a rank moves between host and device in a step: of collectives, up and down, and of updates. */
function bytesOf({ steps }: Schedule) {
  const bytes = { collected: 0, published: 0, fetched: 0, stored: 0 };
  for (const { action, unit } of steps) {
    if (unit === 'root' && (action.type === 'publish' || action.type === 'report')) continue;
    if (action.type === 'collect' && action.own) bytes.collected += action.staging.bytes;
    if (action.type === 'publish') bytes.published += action.source.bytes;
    if (action.type === 'fetch') bytes.fetched += action.staging.bytes;
    if (action.type === 'store' || action.type === 'keep')
      bytes.stored += action.parts.reduce((sum, { device }) => sum + device.bytes, 0);
  }
  return bytes;
}

describe('bytes between host and device', () => {
  const shardBytes = ({ steps: [{ groups }] }: ReturnType<typeof compileFirst>) =>
    groups.reduce((sum, { layout }) => sum + layout.shardElements * 4, 0);

  it('are, beside what is gathered, two moments up and all three down; of clipped gradients a trip each way more', () => {
    for (const devices of [1, 2]) {
      const config = { devices, model: smallModel, strategy: offload() };
      const run = compileFirst({ config });
      const shard = shardBytes(run);
      const { fetched, stored } = bytesOf(run.steps[0].schedule);
      expect([fetched, stored]).toEqual([2 * shard, 3 * shard]);
      const clipped = compileFirst({ config: { ...config, trainer: { gradientClipVal: 1 } } });
      const later = bytesOf(clipped.steps[0].schedule);
      expect([later.fetched, later.stored]).toEqual([4 * shard, 4 * shard]);
    }
  });

  it('are with SGD the parameters down, and nothing up', () => {
    const optimizer = { kind: 'sgd', lr: 0.1, momentum: 0 };
    const run = compileFirst({ config: { devices: 2, model: smallModel, strategy: offload(), optimizer } });
    const { fetched, stored } = bytesOf(run.steps[0].schedule);
    expect([fetched, stored]).toEqual([0, shardBytes(run)]);
  });

  it('come from the host where backward does not gather the parameters: biases alone', () => {
    const freeze = ['*weight', 'transformer.encoder.*'];
    const run = compileFirst({ config: { model: { ...smallModel, freeze }, strategy: offload() } });
    const trained = run.steps[0].groups.filter(({ group }) => group.trainable);
    const gathersInBackward = run.steps[0].schedule.steps.filter(
      ({ action, phase }) => action.type === 'collect' && phase === 'backward',
    );
    expect(gathersInBackward.length).toBeGreaterThan(0);
    const shard = trained.reduce((sum, { layout }) => sum + layout.shardElements * 4, 0);
    expect(bytesOf(run.steps[0].schedule).fetched).toBe(3 * shard);
  });
});

describe('a unit is updated', () => {
  const { schedule } = compileFirst({ config: { devices: 2, model: smallModel, strategy: offload() } }).steps[0];
  const { steps } = schedule;
  const unit = 'transformer.decoder.layers.1';
  const idsOf = (label: string, of = unit) => steps.filter((s) => s.label === label && s.unit === of).map((s) => s.id);

  it('before the units below it are computed, and only once t has advanced', () => {
    const [first] = idsOf('adam');
    const backward = steps.filter((s) => s.lane === 'compute' && s.kind === 'compute' && s.phase === 'backward');
    expect(first).toBeLessThan(backward.at(-1)!.id);
    expect(first).toBeGreaterThan(idsOf('step-advance', 'root')[0]);
    expect(idsOf('step-norm', 'root')[0]).toBeGreaterThan(first);
  });

  it('after the next unit is computed, where its gradients have to come from peers', () => {
    const below = steps.filter((s) => s.unit === 'transformer.decoder.layers.0' && s.phase === 'backward');
    const computed = below.findLast((s) => s.kind === 'compute')!;
    expect(idsOf('adam')[0]).toBeGreaterThan(computed.id);
    const alone = compileFirst({ config: { devices: 1, model: smallModel, strategy: offload() } }).steps[0].schedule
      .steps;
    const adam = alone.find((s) => s.label === 'adam' && s.unit === unit)!;
    const next = alone.find(
      (s) => s.kind === 'compute' && s.phase === 'backward' && s.unit.endsWith('decoder.layers.0'),
    )!;
    expect(adam.id).toBeLessThan(next.id);
  });

  it('with what it needs from the host fetched before its gradients are reduced', () => {
    const below = 'transformer.encoder.layers.0';
    const reduced = steps.find((s) => s.kind === 'reduce-scatter' && s.unit === below)!;
    expect(idsOf(`fetch ${below}`, below)[0]).toBeLessThan(reduced.id);
  });
});

describe('in windows', () => {
  const ofSlot = (devices: number, stagingSlotBytes: number) =>
    compileFirst({
      config: { devices, model: smallModel, strategy: offload() },
      profile: { ...builtInProfiles.interpreter, stagingSlotBytes },
    }).steps[0].schedule;

  it.each([1, 2])('no update fetches, stores or keeps more than a staging slot has room for: %s rank(s)', (devices) => {
    const { steps } = ofSlot(devices, 2048);
    const most = new Map<string, number>();
    for (const { action } of steps)
      if (action.type === 'fetch' || action.type === 'store' || action.type === 'keep') {
        const bytes = action.parts.reduce((sum, { device }) => sum + device.bytes, 0);
        most.set(action.type, Math.max(bytes, most.get(action.type) ?? 0));
      }
    expect(most.get('keep')).toBeGreaterThan(512);
    for (const bytes of most.values()) expect(bytes).toBeLessThanOrEqual(2048);
  });

  it('the root stays gathered until it is updated only where that is no more than the rank has of it', () => {
    const updatesBeforeFree = (devices: number) => {
      const { steps, tensors } = ofSlot(devices, 512);
      const freed = steps.find(({ frees }) => frees.some((id) => /^gathered root/.test(tensors[id].name)))!;
      const updates = steps.filter(({ label, unit }) => label === 'adam' && unit === 'root');
      expect(updates.length).toBeGreaterThan(1);
      return updates.filter(({ id }) => id < freed.id).length;
    };
    expect(updatesBeforeFree(1)).toBeGreaterThan(0);
    expect(updatesBeforeFree(2)).toBe(0);
  });
});

/** A peer may still read a rank's old parameters when that rank has updated some: with every execution, it reads the old ones. */
describe('whatever the lanes do, a step comes to its end and gathers what was there when it began', () => {
  const cases: [string, Parameters<typeof compileRanks>[0]][] = [
    ['FULL_SHARD', { config: { devices: 2, strategy: offload() } }],
    ['prefetch on demand', { config: { devices: 3, strategy: offload({ backwardPrefetch: null }) } }],
    ['without limits', { config: { devices: 2, strategy: offload({ limitAllGathers: false }) } }],
    ['SHARD_GRAD_OP', { config: { devices: 2, strategy: offload({ shardingStrategy: 'SHARD_GRAD_OP' }) } }],
    ['NO_SHARD', { config: { devices: 2, strategy: offload({ shardingStrategy: 'NO_SHARD' }) } }],
    ['a mesh', { config: { devices: 4, strategy: offload({ shardingStrategy: 'HYBRID_SHARD', deviceMesh: [2, 2] }) } }],
    ['tied parameters', { config: { devices: 2, strategy: offload({ autoWrapPolicy: ['Leaf'] }) }, model: tiedModel }],
    [
      'frozen ones',
      { config: { devices: 2, model: { ...smallModel, freeze: ['*bias', 'embedding.weight'] }, strategy: offload() } },
    ],
    ...[false, true].map((syncEveryMicroBatch): [string, Parameters<typeof compileRanks>[0]] => [
      `micro-batches, each reduced: ${syncEveryMicroBatch}`,
      { config: { devices: 2, strategy: offload(), trainer: { accumulateGradBatches: 2, syncEveryMicroBatch } } },
    ]),
  ];
  it.each(cases)('%s', (_, input) => {
    const runs = compileRanks(input);
    expect(runs[0].updatesInBackward).toBe(true);
    const schedules = runs.map((run) => run.steps[0].schedule);
    for (const seed of [1, 2, 3])
      for (const order of interleave(schedules, randomChoice(seed), 2).flat()) {
        const { steps } = schedules[0];
        expect(order.length).toBe(steps.length);
      }
    for (const { steps } of schedules) {
      const stored = new Set<number>();
      for (const { action } of steps) {
        if (action.type === 'collect' && action.own) expect(stored.has(action.own.part.tensor)).toBe(false);
        if (action.type === 'store' || action.type === 'keep')
          for (const { host } of action.parts) stored.add(host.tensor);
      }
      expect(stored.size).toBeGreaterThan(0);
    }
  });
});
