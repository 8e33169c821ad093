import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { bytesSource } from '../checkpoint/byte-source.ts';
import { openCheckpoint } from '../checkpoint/open-checkpoint.ts';
import { scalerOf } from '../checkpoint/stored-checkpoint.ts';
import { parseConfig } from '../config.ts';
import { buildModel } from '../model/build-model.ts';
import { CONTROL } from '../ops/control.ts';
import { roundToHalf } from '../ops/half/half.ts';
import { compileRun } from '../schedule/compile.ts';
import { smallModel } from '../schedule/fixtures/small-runs.ts';
import { tiedModel } from '../schedule/fixtures/tied-model.ts';
import { liveBytes } from '../schedule/memory.ts';
import { builtInProfiles } from '../schedule/profile.ts';
import { dispatches } from '../schedule/schedule.ts';
import { expectAsPlanned, expectSameBits, type Trained } from './fixtures/laws.ts';
import {
  type Batch,
  interpreterPlace,
  openRanks,
  type Place,
  type RanksInput,
  referenceBatch,
  referenceModel,
  softwareGpuPlace,
} from './fixtures/reference-run.ts';
import { trainRun } from './fixtures/train-run.ts';

/** 16-mixed and 16-true: laws 1 and 2 hold within each, and 16-mixed trains as float32 does. */

let gpu: Awaited<ReturnType<typeof softwareGpuPlace>>;
let folder: string;
beforeAll(async () => {
  gpu = await softwareGpuPlace();
  folder = await mkdtemp(join(tmpdir(), 'precision-'));
});
afterAll(async () => {
  gpu?.device.close();
  await rm(folder, { recursive: true });
});

const shape = { batch: 2, tokens: 3 };

function batchOf(vocabulary: number): (step: number, rank: number) => Batch {
  return (step, rank) => {
    const token = (i: number) => (7 * step + 5 * rank + 3 * i * i + i) % vocabulary;
    const input = Array.from({ length: shape.batch * shape.tokens }, (_, i) => token(i));
    return { input, target: input.map((_, i) => token(i + 1)) };
  };
}

/** Trains and holds the run to law 1. */
async function train(place: Place, input: RanksInput, steps = 3): Promise<Trained> {
  const ranks = await openRanks(place, { shape, batch: batchOf(11), ...input });
  try {
    const outcomes = await ranks.train(steps);
    expectAsPlanned(ranks, [steps - 1], JSON.stringify(input.config));
    return { outcomes, parameters: await ranks.parameters() };
  } finally {
    await ranks.close();
  }
}

const model = { ...smallModel, dropout: 0.3 };
const blocks = ['TransformerEncoderLayer', 'TransformerDecoderLayer'];
const fsdp = (settings: object = {}) => ({ kind: 'fsdp', ...settings });
const strategies: readonly object[] = [
  { kind: 'ddp', bucketCapMiB: 1e-3 },
  fsdp({ shardingStrategy: 'NO_SHARD' }),
  fsdp({ shardingStrategy: 'SHARD_GRAD_OP' }),
  fsdp(),
  fsdp({ limitAllGathers: false, autoWrapPolicy: ['Linear'] }),
  fsdp({ autoWrapPolicy: null }),
  fsdp({ activationCheckpointingPolicy: blocks }),
  { kind: 'ddp', activationCheckpointingPolicy: blocks },
  fsdp({ cpuOffload: true }),
  fsdp({ shardingStrategy: 'NO_SHARD', cpuOffload: true }),
];
/** An eps that does not vanish beside second moments that are halves. */
const adamOf = (precision: string) => ({ kind: 'adam', lr: 0.01, ...(precision === '16-true' && { eps: 1e-4 }) });

describe.each(['16-mixed', '16-true'])(
  '%s: every strategy to the same bits, in the memory that was planned',
  (precision) => {
    const expectAlike = async (place: Place, input: RanksInput, list: readonly object[]) => {
      const configured = (strategy: object | string) => ({
        ...input,
        config: { precision, ...input.config, strategy },
      });
      const wanted = await train(place, configured('ddp'));
      expect(wanted.outcomes.flat().every((o) => Number.isFinite(o.loss) && o.gradNorm > 0 && !o.halted)).toBe(true);
      for (const strategy of list)
        expectSameBits(await train(place, configured(strategy)), wanted, JSON.stringify(strategy));
      return wanted;
    };

    it.each([1, 2, 3])('%i ranks, on the interpreter', async (devices) => {
      await expectAlike(interpreterPlace, { config: { devices, model, optimizer: adamOf(precision) } }, strategies);
    });

    it('four ranks in two rows', async () => {
      const hybrids = ['HYBRID_SHARD', 'HYBRID_SHARD_ZERO2'].map((s) =>
        fsdp({ shardingStrategy: s, deviceMesh: [2, 2] }),
      );
      const config = { devices: 4, model, optimizer: adamOf(precision) };
      await expectAlike(interpreterPlace, { config }, [
        ...hybrids,
        ...hybrids.map((h) => ({ ...h, cpuOffload: true })),
      ]);
    });

    it.each([true, false])('micro-batches, clipped, each reduced by itself: %s', async (syncEveryMicroBatch) => {
      const trainer = { accumulateGradBatches: 2, syncEveryMicroBatch, gradientClipVal: 0.02 };
      const config = { devices: 2, model, trainer, optimizer: { kind: 'sgd', lr: 0.1, momentum: 0.9 } };
      await expectAlike(interpreterPlace, { config }, strategies);
    });

    it('frozen and tied parameters, foreach off', async () => {
      const optimizer = { ...adamOf(precision), foreach: false };
      const frozen = { devices: 2, model: { ...model, freeze: ['embedding.weight', '*.norm1.*'] }, optimizer };
      await expectAlike(interpreterPlace, { config: frozen }, strategies);
      const tied = { model: tiedModel, batch: batchOf(13), config: { devices: 3, optimizer } };
      await expectAlike(interpreterPlace, tied, [
        fsdp({ autoWrapPolicy: ['Block', 'Leaf'] }),
        fsdp({ autoWrapPolicy: [] }),
      ]);
    });

    it('collectives cut into many pieces', async () => {
      const config = { devices: 3, model, optimizer: adamOf(precision) };
      const place = { ...interpreterPlace, profile: { ...interpreterPlace.profile, stagingSlotBytes: 160 } };
      const whole = await expectAlike(interpreterPlace, { config }, []);
      expectSameBits(await expectAlike(place, { config }, strategies), whole, 'pieces');
    });

    it.each(['gpt2', 'llama'])('%s', async (kind) => {
      const sizes = {
        gpt2: { nLayer: 2, nHead: 3, nEmbd: 6, nPositions: 7 },
        llama: { hiddenSize: 12, intermediateSize: 7, numHiddenLayers: 2, numAttentionHeads: 6, numKeyValueHeads: 2 },
      }[kind];
      const [block] = { gpt2: ['GPT2Block'], llama: ['LlamaDecoderLayer'] }[kind]!;
      const config = {
        devices: 2,
        model: { kind, vocabSize: 11, ...sizes },
        data: { kind: 'moby-dick', blockSize: 3 },
      };
      const list = [fsdp(), fsdp({ autoWrapPolicy: [block], activationCheckpointingPolicy: [block] })];
      await expectAlike(interpreterPlace, { config: { ...config, optimizer: adamOf(precision) } }, list);
    });

    it('on a software GPU, close to the interpreter', async () => {
      const config = { devices: 2, model, optimizer: adamOf(precision) };
      const onGpu = await expectAlike(gpu, { config }, [strategies[0], fsdp(), strategies[6], strategies[8]]);
      const { outcomes } = await train(interpreterPlace, { config: { ...config, precision, strategy: 'ddp' } });
      outcomes.forEach((byRank, step) => {
        expect(Math.abs(onGpu.outcomes[step][0].loss - byRank[0].loss)).toBeLessThan(2e-3);
      });
    });
  },
);

describe('gradients that travel as another type than precision says', () => {
  const settings = [{ shardingStrategy: 'SHARD_GRAD_OP' }, {}, { cpuOffload: true }, { autoWrapPolicy: null }];
  const hybrid = { shardingStrategy: 'HYBRID_SHARD', deviceMesh: [2, 2] };

  it.each([
    ['32-true', 'float16'],
    ['16-mixed', 'float32'],
  ])('%s, %s: every strategy to the same bits, which are others', async (precision, reduceDtype) => {
    for (const devices of [2, 4]) {
      const input = (strategy: object) => ({ config: { devices, model, precision, strategy } });
      const as = (more: object) => input(fsdp({ ...more, mixedPrecision: { reduceDtype } }));
      const wanted = await train(interpreterPlace, as({ shardingStrategy: 'NO_SHARD' }));
      for (const more of devices === 4 ? [{}, hybrid] : settings)
        expectSameBits(await train(interpreterPlace, as(more)), wanted, JSON.stringify(more));
      const asPrecisionSays = await train(interpreterPlace, input(fsdp()));
      expect(() => expectSameBits(asPrecisionSays, wanted, 'another type')).toThrow();
      wanted.outcomes.forEach(([{ loss }], step) => {
        expect(Math.abs(loss - asPrecisionSays.outcomes[step][0].loss)).toBeLessThan(2e-3);
      });
    }
  });

  it('on a software GPU, to the same bits in each strategy', async () => {
    const as = (more: object) => ({
      config: { devices: 2, model, strategy: fsdp({ ...more, mixedPrecision: { reduceDtype: 'float16' } }) },
    });
    const wanted = await train(gpu, as({ shardingStrategy: 'NO_SHARD' }));
    expectSameBits(await train(gpu, as({})), wanted, 'FULL_SHARD');
  });
});

describe('16-mixed trains as float32 does', () => {
  it.each(['interpreter', 'a software GPU'])(
    'losses within 2 % or 0.02 over 50 steps, on %s',
    async (name) => {
      const place = name === 'interpreter' ? interpreterPlace : gpu;
      const losses = async (precision: string) => {
        const devices = place === gpu ? 1 : 2;
        const config = { devices, model: referenceModel, strategy: 'fsdp', precision };
        const ranks = await openRanks(place, { config, batch: (step, rank) => referenceBatch(step % 20, rank) });
        const outcomes = await ranks.train(50);
        await ranks.close();
        return outcomes.map(([{ lossMean }]) => lossMean);
      };
      const [wanted, mixed] = [await losses('32-true'), await losses('16-mixed')];
      expect(wanted[49]).toBeLessThan(0.9 * wanted[0]);
      expect(mixed).not.toEqual(wanted);
      wanted.forEach((loss, step) => {
        const difference = Math.abs(mixed[step] - loss);
        expect(Math.min(difference, difference / loss), `step ${step}: ${mixed[step]}, not ${loss}`).toBeLessThan(0.02);
      });
    },
    60_000,
  );
});

/** Most live bytes of each category, and what is reserved, on rank 0 of two: 4 + 4 layers, 1.3 B parameters. */
function planOf(settings: object) {
  const large = { kind: 'demo-transformer', vocabSize: 33_278, ninp: 4096, nhead: 64, nhid: 4096, nlayers: 4 };
  const config = parseConfig({ model: large, devices: 2, strategy: 'fsdp', ...settings });
  const run = compileRun({
    config,
    model: buildModel(config.model, null),
    shapes: [{ batch: 8, tokens: 256 }],
    rank: 0,
    profile: builtInProfiles.h200,
  });
  const live = liveBytes(run.steps[0].schedule);
  const most = (category: keyof (typeof live)[number]) => Math.max(...live.map((bytes) => bytes[category]));
  const published = run.regions.filter(({ name }) => name.startsWith('shard ')).reduce((sum, r) => sum + r.bytes, 0);
  return { run, most, published, reserved: run.memory.reservedBytes };
}

describe('memory and traffic', () => {
  it('49: 16-mixed shows the drop that it should', () => {
    const [single, mixed, half] = ['32-true', '16-mixed', '16-true'].map((precision) => planOf({ precision }));
    for (const category of ['gathered', 'activations'] as const)
      for (const run of [mixed, half])
        expect(run.most(category) / single.most(category), category).toBeGreaterThan(0.49);
    expect(mixed.most('gathered') / single.most('gathered')).toBeLessThan(0.51);
    // Logits and figures of rows stay float32.
    expect(mixed.most('activations') / single.most('activations')).toBeLessThan(0.75);
    expect(mixed.published / single.published).toBeCloseTo(0.5, 2);
    expect(mixed.most('parameters')).toBe(single.most('parameters'));
    expect(mixed.most('optimizer')).toBe(single.most('optimizer'));
    expect(mixed.reserved).toBeLessThan(0.9 * single.reserved);
    expect(half.most('parameters') / single.most('parameters')).toBeCloseTo(0.5, 3);
    expect(half.most('optimizer') / single.most('optimizer')).toBeCloseTo(0.5, 3);
    expect(half.reserved).toBeLessThan(0.6 * single.reserved);
  });

  it('a rank that keeps whole parameters copies those of the unit in use', () => {
    const { run, most } = planOf({ precision: '16-mixed', strategy: fsdp({ shardingStrategy: 'NO_SHARD' }) });
    const largest = Math.max(...run.steps[0].groups.map(({ layout }) => layout.fullElements));
    expect(most('gathered')).toBeGreaterThan(0);
    expect(most('gathered')).toBeLessThanOrEqual(2 * largest);
  });

  it('every parameter is read as halves, and no other kernel than an optimizer’s reads what is kept', () => {
    const { run } = planOf({ precision: '16-mixed' });
    const { steps, tensors } = run.steps[0].schedule;
    for (const step of steps)
      for (const { kernel, operands } of dispatches(step.action))
        operands.forEach(({ tensor }, i) => {
          const { category } = tensors[tensor];
          if (category === 'gathered') expect(kernel.operands[i].dtype, kernel.name).toBe('f16');
          if (category === 'parameters' && step.kind === 'compute') expect.fail(`${kernel.name} reads parameters`);
        });
  });
});

describe('the loss scale', () => {
  const config = { devices: 2, model, strategy: 'fsdp', precision: '16-mixed' };
  const open = () => openRanks(interpreterPlace, { config, shape, batch: batchOf(11) });
  const scaleOf = async (ranks: Awaited<ReturnType<typeof open>>, rank = 0) =>
    ranks.engines[rank].read('control', CONTROL.lossScale * 4, 8);

  it('starts at 65536, and does not show in losses and norms', async () => {
    const ranks = await open();
    const [[first]] = await ranks.train(1);
    expect([...(await scaleOf(ranks))]).toEqual([65_536, 1]);
    await ranks.close();
    const single = await openRanks(interpreterPlace, {
      config: { ...config, precision: '32-true' },
      shape,
      batch: batchOf(11),
    });
    const [[wanted]] = await single.train(1);
    await single.close();
    expect(first.loss / wanted.loss).toBeCloseTo(1, 2);
    expect(first.gradNorm / wanted.gradNorm).toBeCloseTo(1, 1);
  });

  it('an overflow skips the step on every rank and halves the scale until it fits; nothing halts', async () => {
    const ranks = await open();
    const before = await ranks.parameters();
    for (const engine of ranks.engines)
      await engine.write('control', CONTROL.lossScale * 4, Float32Array.of(2 ** 24, 5));
    const outcomes = await ranks.train(1);
    expect(outcomes[0].map((o) => [Number.isFinite(o.loss), Number.isFinite(o.gradNorm), o.halted])).toEqual([
      [true, false, false],
      [true, false, false],
    ]);
    expect(await ranks.parameters()).toEqual(before);
    for (const rank of [0, 1]) expect([...(await scaleOf(ranks, rank))]).toEqual([2 ** 23, 0]);
    const later = await ranks.train(10);
    expect(later.at(-1)!.every((o) => Number.isFinite(o.gradNorm) && !o.halted)).toBe(true);
    expect(await ranks.parameters()).not.toEqual(before);
    const [scale] = await scaleOf(ranks);
    expect(scale).toBeGreaterThan(2 ** 10);
    expect(scale).toBeLessThan(2 ** 23);
    await ranks.close();
  });

  it('doubles after 2000 finite steps in a row', async () => {
    const ranks = await open();
    for (const engine of ranks.engines)
      await engine.write('control', CONTROL.lossScale * 4, Float32Array.of(1024, 1999));
    await ranks.train(1);
    expect([...(await scaleOf(ranks))]).toEqual([2048, 0]);
    await ranks.train(1);
    expect([...(await scaleOf(ranks))]).toEqual([2048, 1]);
    await ranks.close();
  });
});

describe('a run', () => {
  const run = {
    devices: 2,
    strategy: 'fsdp',
    trainer: { steps: 4 },
    checkpoint: { every: 2, atEnd: true, format: 'full' },
  };

  it('16-mixed: a full checkpoint in float32 with the scaler’s state, from which training goes on bit for bit', async () => {
    const whole = await trainRun(join(folder, 'mixed'), { ...run, precision: '16-mixed' });
    const [path] = whole.checkpoints;
    const stored = await openCheckpoint({ file: bytesSource(path, await readFile(path)) });
    expect([...stored.model.values()].every(({ dtype }) => dtype === 'float32')).toBe(true);
    expect(scalerOf(stored)).toEqual({ scale: 65_536, goodSteps: 2 });
    expect((stored.rest.get('scaler') as Map<unknown, unknown>).get('growth_interval')).toBe(2000);
    const rest = await trainRun(join(folder, 'mixed-rest'), {
      ...run,
      precision: '16-mixed',
      checkpoint: { resume: path, atEnd: false },
    });
    for (const step of [2, 3]) expect(rest.losses.get(step)).toEqual(whole.losses.get(step));
  });

  it.each(['full', 'sharded'])(
    '16-true: a %s checkpoint in float16, from which training goes on bit for bit',
    async (format) => {
      const settings = { ...run, precision: '16-true', optimizer: { kind: 'adam', eps: 1e-4 } };
      const whole = await trainRun(join(folder, `true-${format}`), {
        ...settings,
        checkpoint: { ...run.checkpoint, format },
      });
      const [path] = whole.checkpoints;
      if (format === 'full') {
        const stored = await openCheckpoint({ file: bytesSource(path, await readFile(path)) });
        expect([...stored.model.values()].every(({ dtype }) => dtype === 'float16')).toBe(true);
        const state = stored.optimizers[0].state.get('decoder.bias')!;
        for (const [part, dtype] of [
          ['exp_avg', 'float16'],
          ['exp_avg_sq', 'float16'],
          ['step', 'float32'],
        ])
          expect(state.get(part), part).toMatchObject({ dtype });
      }
      const rest = await trainRun(join(folder, `true-${format}-rest`), {
        ...settings,
        checkpoint: { resume: path, atEnd: false },
      });
      for (const step of [2, 3]) expect(rest.losses.get(step)).toEqual(whole.losses.get(step));
    },
  );

  it('goes on after a skipped step, says so, and ends only at a loss that is not finite', async () => {
    const steep = { ...run, checkpoint: { atEnd: false }, trainer: { steps: 2 }, precision: '16-mixed' };
    const overflowing = await trainRun(join(folder, 'skip'), { ...steep, optimizer: { kind: 'sgd', lr: 1e-3 } });
    expect(overflowing.status).toBe('finished');
    await expect(
      trainRun(join(folder, 'nan'), { ...steep, trainer: { steps: 6 }, optimizer: { kind: 'sgd', lr: 1e9 } }),
    ).rejects.toThrow(/is not finite \(loss/);
  });

  it('16-true: what a rank keeps is halves, filled with the nearest of the initial values', async () => {
    const config = { devices: 2, model, strategy: 'fsdp' };
    const [half, single] = [
      await openRanks(interpreterPlace, { config: { ...config, precision: '16-true' } }),
      await openRanks(interpreterPlace, { config }),
    ];
    const wanted = await single.parameters();
    for (const [name, values] of await half.parameters()) expect(values).toEqual(wanted.get(name)!.map(roundToHalf));
    await half.close();
    await single.close();
  });
});
