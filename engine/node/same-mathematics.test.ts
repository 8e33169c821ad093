import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { smallModel } from '../schedule/fixtures/small-runs.ts';
import { tiedModel } from '../schedule/fixtures/tied-model.ts';
import { expectSameBits, type Trained } from './fixtures/laws.ts';
import {
  type Batch,
  interpreterPlace,
  openRanks,
  type Place,
  type RanksInput,
  softwareGpuPlace,
} from './fixtures/reference-run.ts';

/** Law 2: strategies do not change the mathematics. Losses, norms and every weight are equal bit for bit. */

const STEPS = 3;
const shape = { batch: 2, tokens: 3 };

/** Each rank and step has its own tokens below `vocabulary`. */
function batchOf(vocabulary: number): (step: number, rank: number) => Batch {
  return (step, rank) => {
    const token = (i: number) => (7 * step + 5 * rank + 3 * i * i + i) % vocabulary;
    const input = Array.from({ length: shape.batch * shape.tokens }, (_, i) => token(i));
    return { input, target: input.map((_, i) => token(i + 1)) };
  };
}

async function train(place: Place, input: RanksInput, steps = STEPS): Promise<Trained> {
  const ranks = await openRanks(place, { shape, batch: batchOf(11), ...input });
  try {
    return { outcomes: await ranks.train(steps), parameters: await ranks.parameters() };
  } finally {
    await ranks.close();
  }
}

const wrapPolicies = [
  ['TransformerEncoderLayer', 'TransformerDecoderLayer'],
  ['TransformerEncoderLayer'],
  ['Linear'],
  ['Embedding', 'MultiheadAttention', 'LayerNorm', 'TransformerDecoder'],
  [],
];
const prefetches = ['BACKWARD_PRE', 'BACKWARD_POST', null];
const every = wrapPolicies.flatMap((autoWrapPolicy) =>
  prefetches.flatMap((backwardPrefetch) =>
    [true, false].map((limitAllGathers) => ({ kind: 'fsdp', autoWrapPolicy, backwardPrefetch, limitAllGathers })),
  ),
);
const name = (strategy: object) => JSON.stringify(strategy);

describe('on the interpreter', () => {
  it.each([1, 2, 3, 4])('%i ranks: DDP with any buckets and FULL_SHARD in every setting', async (devices) => {
    const config = { devices, model: { ...smallModel, dropout: 0.3 } };
    const wanted = await train(interpreterPlace, { config: { ...config, strategy: 'ddp' } });
    expect(wanted.outcomes.flat().every((o) => Number.isFinite(o.loss) && o.gradNorm > 0 && !o.halted)).toBe(true);
    for (const bucketCapMiB of [1e-5, 1e-3]) {
      const strategy = { kind: 'ddp', bucketCapMiB };
      expectSameBits(await train(interpreterPlace, { config: { ...config, strategy } }), wanted, name(strategy));
    }
    for (const strategy of every)
      expectSameBits(await train(interpreterPlace, { config: { ...config, strategy } }), wanted, name(strategy));
  });

  it('more ranks than rows: most shards of the small parameters are empty', async () => {
    const model = { ...smallModel, ninp: 2, nhead: 1, nhid: 3, nlayers: 1 };
    for (const devices of [5, 8]) {
      const [ddp, fullShard] = await Promise.all(
        ['ddp', 'fsdp'].map((strategy) => train(interpreterPlace, { config: { devices, model, strategy } })),
      );
      expectSameBits(fullShard, ddp, `${devices} ranks`);
    }
  });

  it.each([
    { kind: 'adamw', weightDecay: 0.1 },
    { kind: 'sgd', lr: 0.1, momentum: 0.9, nesterov: true, weightDecay: 0.01 },
    { kind: 'sgd', lr: 0.1, momentum: 0 },
  ])('every optimizer: %o', async (optimizer) => {
    const config = { devices: 3, optimizer };
    const ddp = await train(interpreterPlace, { config: { ...config, strategy: 'ddp' } });
    expectSameBits(await train(interpreterPlace, { config: { ...config, strategy: 'fsdp' } }), ddp, optimizer.kind);
  });

  it('tied parameters, within a unit and across units', async () => {
    const input = { model: tiedModel, batch: batchOf(13) };
    for (const devices of [1, 2, 3]) {
      const wanted = await train(interpreterPlace, { ...input, config: { devices, strategy: 'ddp' } });
      for (const autoWrapPolicy of [['Block'], ['Leaf'], ['Block', 'Leaf', 'Embedding', 'Head'], []])
        for (const limitAllGathers of [true, false]) {
          const strategy = { kind: 'fsdp', autoWrapPolicy, limitAllGathers };
          const trained = await train(interpreterPlace, { ...input, config: { devices, strategy } });
          expectSameBits(trained, wanted, `${devices} ranks, ${name(strategy)}`);
        }
    }
  });

  it('collectives cut into many pieces', async () => {
    const config = { devices: 3, model: smallModel };
    const wanted = await train(interpreterPlace, { config: { ...config, strategy: 'ddp' } });
    const place = { ...interpreterPlace, profile: { ...interpreterPlace.profile, stagingSlotBytes: 160 } };
    for (const strategy of ['ddp', 'fsdp'])
      expectSameBits(await train(place, { config: { ...config, strategy } }), wanted, strategy);
  });

  it('a root whose embedding and head are groups of their own', async () => {
    const config = { devices: 2, model: { ...smallModel, vocabSize: 33_000, ninp: 8, nhead: 2, nlayers: 1 } };
    const input = { batch: batchOf(33_000) };
    const wanted = await train(interpreterPlace, { ...input, config: { ...config, strategy: 'ddp' } }, 2);
    for (const settings of [
      {},
      { shardingStrategy: 'SHARD_GRAD_OP' },
      { shardingStrategy: 'NO_SHARD' },
      { cpuOffload: true },
    ]) {
      const strategy = { kind: 'fsdp', ...settings };
      const trained = await train(interpreterPlace, { ...input, config: { ...config, strategy } }, 2);
      expectSameBits(trained, wanted, name(strategy));
    }
  });

  it('slabs smaller than the state, and any alignment', async () => {
    const config = { devices: 2, model: smallModel };
    const wanted = await train(interpreterPlace, { config: { ...config, strategy: 'ddp' } });
    for (const strategy of ['ddp', 'fsdp'])
      for (const [slabBytes, offsetAlignmentBytes] of [
        [8000, 16],
        [9999, 64],
        [20_000, 256],
        [33_333, 256],
      ]) {
        const limits = { maxBufferBytes: slabBytes, maxBindingBytes: slabBytes, offsetAlignmentBytes };
        const place = { ...interpreterPlace, profile: { ...interpreterPlace.profile, ...limits } };
        expectSameBits(await train(place, { config: { ...config, strategy } }), wanted, `${slabBytes} ${strategy}`);
      }
  });

  it('can tell one training from another', async () => {
    const config = { devices: 2, strategy: 'ddp' };
    const wanted = await train(interpreterPlace, { config });
    const other = await train(interpreterPlace, { config: { ...config, trainer: { seed: 43 } } });
    expect(() => expectSameBits(other, wanted, 'another seed')).toThrow();
  });
});

describe('on a software GPU', () => {
  let gpu: Awaited<ReturnType<typeof softwareGpuPlace>>;
  beforeAll(async () => {
    gpu = await softwareGpuPlace();
  });
  afterAll(() => gpu?.device.close());

  it.each([2, 3])(
    '%i ranks',
    async (devices) => {
      const config = { devices, model: { ...smallModel, dropout: 0.3 } };
      const wanted = await train(gpu, { config: { ...config, strategy: 'ddp' } });
      const strategies = [
        { kind: 'ddp', bucketCapMiB: 1e-3 },
        { kind: 'fsdp' },
        { kind: 'fsdp', limitAllGathers: false },
        { kind: 'fsdp', backwardPrefetch: null },
        { kind: 'fsdp', backwardPrefetch: 'BACKWARD_POST' },
        { kind: 'fsdp', autoWrapPolicy: ['Embedding', 'Linear', 'TransformerEncoderLayer'] },
      ];
      for (const strategy of strategies)
        expectSameBits(await train(gpu, { config: { ...config, strategy } }), wanted, name(strategy));
    },
    120_000,
  );
});
