import { describe, expect, it } from 'vitest';
import { parseConfig } from '../config.ts';
import type { StudioError } from '../errors.ts';
import { buildModel } from '../model/build-model.ts';
import { budgetVerdict, fittingSettings, overflowMessage, overflowOf, refuseOverBudget } from './budget.ts';
import { type CompiledRun, compileRun } from './compile.ts';
import { liveBytes, sumCategories } from './memory.ts';
import { shapeOfData } from './plan.ts';
import { builtInProfiles } from './profile.ts';
import { thriftierSettings, withSettings } from './thriftier-settings.ts';

const MiB = 2 ** 20;
const profile = { ...builtInProfiles.h200, stagingSlotBytes: 2 ** 16 };
const model = { kind: 'demo-transformer', vocabSize: 200, ninp: 64, nhead: 4, nhid: 128, nlayers: 4 };
const data = { kind: 'moby-dick', batchSize: 8, blockSize: 16 };

const configOf = (settings: object) => parseConfig({ model, data, devices: 2, strategy: 'ddp', ...settings });
function compiled(settings: object, rank = 0) {
  const config = configOf(settings);
  const run = compileRun({
    config,
    model: buildModel(config.model, null),
    shapes: [shapeOfData(config.data)],
    rank,
    profile,
  });
  return { config, run };
}

/** Reserved for the uniforms of dispatches, which no tensor of the schedule is. */
const uniforms = (run: CompiledRun) => run.memory.slabs.find((s) => s.space === 'uniform')!.bytes;
/** Staging slots are held throughout; a schedule counts them while they are in use. */
const stagingOf = (run: CompiledRun) =>
  run.memory.slabs.reduce((sum, s) => sum + (s.space === 'device' || s.space === 'uniform' ? 0 : s.bytes), 0);

const needed = compiled({}).run.memory.reservedBytes;

describe('an overflow', () => {
  it('is none where the run fits to the byte, and where there is no budget', () => {
    const { run } = compiled({});
    expect(overflowOf(run, null)).toBeNull();
    expect(overflowOf(run, needed / MiB)).toBeNull();
    expect(overflowOf(run, (needed - 1) / MiB)).not.toBeNull();
  });

  it.each([0.999, 0.9, 0.8])('names the tensor with which what is alive first passes %d of the need', (part) => {
    const { run } = compiled({}, 1);
    const overflow = overflowOf(run, (part * needed) / MiB)!;
    expect(overflow).toMatchObject({ rank: 1, neededBytes: needed, budgetBytes: part * needed });
    const { schedule } = run.steps[0];
    const tensor = schedule.tensors.find(({ name }) => name === overflow.tensor)!;
    expect(overflow.bytes).toBe(tensor.bytes);
    expect(schedule.steps[overflow.scheduleStep!].creates).toContain(tensor.id);
    const room = part * needed - uniforms(run);
    const live = liveBytes(schedule).map(sumCategories);
    expect(live[overflow.scheduleStep!]).toBeGreaterThan(room - stagingOf(run));
    for (const before of live.slice(0, overflow.scheduleStep!)) expect(before).toBeLessThanOrEqual(room);
  });

  it('where only gaps between tensors pass the budget, names the first whose place is past it', () => {
    const { run } = compiled({ strategy: 'fsdp' });
    const live = Math.max(...liveBytes(run.steps[0].schedule).map(sumCategories)) + uniforms(run);
    expect(live).toBeLessThan(run.memory.reservedBytes);
    const overflow = overflowOf(run, live / MiB)!;
    expect(overflow.scheduleStep).not.toBeNull();
    expect(overflow.bytes).toBeGreaterThan(0);
  });

  it('is before step 0 where not even the state has room', () => {
    const overflow = overflowOf(compiled({}).run, (0.4 * needed) / MiB)!;
    expect(overflow.scheduleStep).toBeNull();
    expect(overflow.tensor).toMatch(/^(parameters|exp_avg|exp_avg_sq) bucket/);
  });
});

describe('what would have fitted', () => {
  it('is tried in one order: recomputed blocks, sharding, offload, smaller batches', () => {
    const tried = [...thriftierSettings(configOf({}), ['Block'])].map((settings) => Object.values(settings).join(' '));
    expect(tried).toEqual([
      'Block',
      'fsdp SHARD_GRAD_OP',
      'fsdp SHARD_GRAD_OP Block',
      'fsdp FULL_SHARD',
      'fsdp FULL_SHARD Block',
      'fsdp FULL_SHARD true',
      'fsdp FULL_SHARD true Block',
      '4',
      '2',
      '1',
      'fsdp FULL_SHARD true Block 4',
      'fsdp FULL_SHARD true Block 2',
      'fsdp FULL_SHARD true Block 1',
    ]);
  });

  it('really fits, and what was passed over does not', () => {
    const config = configOf({});
    const input = { model: buildModel(config.model, null), shapes: [shapeOfData(config.data)], profile };
    const budgetMiB = (0.75 * needed) / MiB;
    const found = fittingSettings(config, budgetMiB, input, 2);
    expect(found).toHaveLength(2);
    for (const { settings, peakBytes } of found) {
      const changed = withSettings(config, settings)!;
      const run = compileRun({ ...input, config: changed, shapes: [shapeOfData(changed.data)], rank: 0 });
      expect(run.memory.reservedBytes).toBe(peakBytes);
      expect(peakBytes).toBeLessThanOrEqual(budgetMiB * MiB);
    }
    expect(fittingSettings(config, 1e-3, input)).toEqual([]);
  });

  it('keeps what a strategy can keep, and leaves out what only the other has', () => {
    const hybrid = {
      kind: 'fsdp',
      shardingStrategy: 'HYBRID_SHARD',
      deviceMesh: [2, 2],
      linkGBps: 1,
      forwardPrefetch: true,
    };
    const config = configOf({ devices: 4, strategy: hybrid });
    const full = withSettings(config, { 'strategy.kind': 'fsdp', 'strategy.shardingStrategy': 'FULL_SHARD' })!;
    expect(full.strategy).toMatchObject({
      shardingStrategy: 'FULL_SHARD',
      deviceMesh: null,
      linkGBps: null,
      forwardPrefetch: true,
    });
    const ddp = configOf({ strategy: { kind: 'ddp', activationCheckpointingPolicy: ['TransformerEncoderLayer'] } });
    expect(
      withSettings(ddp, { 'strategy.kind': 'fsdp', 'strategy.shardingStrategy': 'FULL_SHARD' })!.strategy,
    ).toMatchObject({
      kind: 'fsdp',
      activationCheckpointingPolicy: ['TransformerEncoderLayer'],
    });
  });
});

describe('the refusal', () => {
  it('names rank, step, tensor, bytes and what would have fitted', () => {
    const memoryBudgetMiB = (0.7 * needed) / MiB;
    const { config, run } = compiled({ memoryBudgetMiB });
    try {
      refuseOverBudget(config, run, profile);
      expect.fail('it was not refused');
    } catch (error) {
      const { code, message, details } = error as StudioError;
      expect(code).toBe('out-of-memory');
      expect(message).toMatch(
        /^memoryBudgetMiB [\d.]+: rank 0 has no room for .+ \([\d.]+ MiB, \d+ bytes\) (at schedule step \d+ \(.+\)|before step 0); the run needs [\d.]+ MiB a rank\. It would fit with strategy\./,
      );
      expect(details).toMatchObject({ rank: 0, ooms: 1, neededBytes: needed });
    }
    expect(() => refuseOverBudget(configOf({}), run, profile)).not.toThrow();
  });

  it('names what a person knows: parameters and their unit, before tables of constants', () => {
    const said = (settings: object, budgetMiB: number) => {
      const { run } = compiled(settings);
      return overflowMessage(overflowOf(run, budgetMiB)!, []);
    };
    const { run: sharded } = compiled({ strategy: 'fsdp' });
    const staging = (stagingOf(sharded) + uniforms(sharded)) / MiB;
    expect(said({ strategy: 'fsdp' }, staging + 0.001)).toContain('no room for parameters of unit root (');
    expect(said({ strategy: 'fsdp' }, staging / 2)).toContain(
      'the buffers through which ranks, host and device exchange (',
    );
    expect(said({ strategy: 'ddp' }, (0.4 * needed) / MiB)).toMatch(/no room for \w+ of bucket \d \(/);
  });

  it('says what to do where nothing fits', () => {
    const verdict = budgetVerdict(configOf({ memoryBudgetMiB: 0.01 }), profile)!;
    expect(overflowMessage(verdict.overflow, verdict.fitting)).toMatch(
      /more devices or a smaller model, or raise memoryBudgetMiB$/,
    );
    expect(budgetVerdict(configOf({ memoryBudgetMiB: 1000 }), profile)).toBeNull();
    expect(budgetVerdict(configOf({}), profile)).toBeNull();
  });
});
