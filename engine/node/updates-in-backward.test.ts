import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { parseConfig } from '../config.ts';
import { configHints } from '../config-hints.ts';
import type { StudioError } from '../errors.ts';
import { smallModel } from '../schedule/fixtures/small-runs.ts';
import { tiedModel } from '../schedule/fixtures/tied-model.ts';
import { expectSameBits, type Trained } from './fixtures/laws.ts';
import { type Batch, interpreterPlace, openRanks, type RanksInput } from './fixtures/reference-run.ts';
import { startSavingRanks } from './fixtures/saving-ranks.ts';

/** With offload a unit is updated as soon as its gradients are reduced: the same bits as DDP, whatever peers still read. */

const shape = { batch: 2, tokens: 3 };
const batchOf =
  (vocabulary: number) =>
  (step: number, rank: number): Batch => {
    const token = (i: number) => (7 * step + 5 * rank + 3 * i * i + i) % vocabulary;
    const input = Array.from({ length: shape.batch * shape.tokens }, (_, i) => token(i));
    return { input, target: input.map((_, i) => token(i + 1)) };
  };

/** A staging slot that no unit fits, at an alignment as a GPU has it: several windows of each. */
const windows = { ...interpreterPlace.profile, stagingSlotBytes: 1600, offsetAlignmentBytes: 64 };

async function train(input: RanksInput, place = interpreterPlace): Promise<Trained & { inBackward: boolean }> {
  const ranks = await openRanks(place, { shape, batch: batchOf(11), ...input });
  try {
    const outcomes = await ranks.train(3);
    return { outcomes, parameters: await ranks.parameters(), inBackward: ranks.runs[0].updatesInBackward };
  } finally {
    await ranks.close();
  }
}

const offload = (settings: object = {}) => ({ kind: 'fsdp', cpuOffload: true, ...settings });

describe('the same bits as DDP', () => {
  const cases: [string, object, object[]][] = [
    ['Adam', {}, [{}, { shardingStrategy: 'SHARD_GRAD_OP' }, { shardingStrategy: 'NO_SHARD' }]],
    ['one rank', { devices: 1 }, [{}, { autoWrapPolicy: ['Linear'] }, { autoWrapPolicy: [] }]],
    [
      'prefetch and limits',
      { devices: 3 },
      [{ backwardPrefetch: null }, { backwardPrefetch: 'BACKWARD_POST' }, { limitAllGathers: false }],
    ],
    ['blocks computed again', {}, [{ activationCheckpointingPolicy: ['TransformerEncoderLayer'] }]],
    ['more ranks than rows', { devices: 5, model: { ...smallModel, ninp: 2, nhead: 1, nhid: 3, nlayers: 1 } }, [{}]],
    ['no state', { optimizer: { kind: 'sgd', lr: 0.1, momentum: 0 } }, [{}]],
    ['momentum', { optimizer: { kind: 'sgd', lr: 0.1, momentum: 0.9, nesterov: true } }, [{}]],
    [
      'groups of their own rates, one kernel for each parameter',
      { optimizer: { kind: 'adamw', foreach: false, groups: [{ match: '*.bias', lr: 0.5, weightDecay: 0 }] } },
      [{}],
    ],
    ['elements clipped', { trainer: { gradientClipVal: 0.01, gradientClipAlgorithm: 'value' } }, [{}]],
    [
      'frozen parameters',
      { model: { ...smallModel, freeze: ['*norm*', 'embedding.weight', '*linear1.weight'] } },
      [{}],
    ],
    ['micro-batches', { trainer: { accumulateGradBatches: 2 } }, [{}, { shardingStrategy: 'SHARD_GRAD_OP' }]],
    [
      'micro-batches reduced by themselves',
      { trainer: { accumulateGradBatches: 2, syncEveryMicroBatch: true } },
      [{}, { shardingStrategy: 'SHARD_GRAD_OP' }],
    ],
    [
      'rows of a mesh',
      { devices: 4 },
      ['HYBRID_SHARD', 'HYBRID_SHARD_ZERO2'].map((shardingStrategy) => ({ shardingStrategy, deviceMesh: [2, 2] })),
    ],
  ];
  it.each(cases)('%s', async (_, settings, strategies) => {
    const config = { devices: 2, model: smallModel, ...settings };
    const wanted = await train({ config: { ...config, strategy: 'ddp' } });
    for (const strategy of strategies)
      for (const profile of [interpreterPlace.profile, windows]) {
        const trained = await train(
          { config: { ...config, strategy: offload(strategy) } },
          { ...interpreterPlace, profile },
        );
        expect(trained.inBackward).toBe(true);
        expectSameBits(trained, wanted, JSON.stringify(strategy));
      }
  });

  it('tied parameters, within a unit and across units', async () => {
    const input = { model: tiedModel, batch: batchOf(13) };
    for (const devices of [1, 2]) {
      const wanted = await train({ ...input, config: { devices, strategy: 'ddp' } });
      for (const autoWrapPolicy of [['Block'], ['Leaf'], ['Block', 'Leaf', 'Embedding', 'Head'], []]) {
        const trained = await train({ ...input, config: { devices, strategy: offload({ autoWrapPolicy }) } });
        expect(trained.inBackward).toBe(true);
        expectSameBits(trained, wanted, `${devices} ranks, ${autoWrapPolicy}`);
      }
    }
  });

  it('but where something has to be known of all gradients first, they wait for it', async () => {
    for (const settings of [{ trainer: { gradientClipVal: 0.01 } }, { trainer: { onNonFinite: 'skip' } }]) {
      const config = { devices: 2, model: smallModel, ...settings };
      const trained = await train({ config: { ...config, strategy: offload() } });
      expect(trained.inBackward).toBe(false);
      const [hint] = configHints(parseConfig({ ...config, strategy: offload() }));
      expect(hint.path).toBe(`trainer.${Object.keys(settings.trainer)[0]}`);
      expectSameBits(trained, await train({ config: { ...config, strategy: 'ddp' } }), JSON.stringify(settings));
    }
    const scaled = await openRanks(interpreterPlace, {
      shape,
      config: { model: smallModel, precision: '16-mixed', strategy: offload() },
    });
    expect(scaled.runs[0].updatesInBackward).toBe(false);
    const [hint] = configHints(parseConfig({ precision: '16-mixed', strategy: offload() }));
    expect(hint.path).toBe('precision');
    const plain = { trainer: { gradientClipVal: 1 }, strategy: 'fsdp' };
    for (const config of [{ strategy: offload() }, plain]) expect(configHints(parseConfig(config))).toEqual([]);
    await scaled.close();
  });
});

describe('a step that is not finite', () => {
  const spoilt = async (devices: number) => {
    const ranks = await openRanks(interpreterPlace, {
      shape,
      batch: batchOf(11),
      config: { devices, model: smallModel, strategy: offload() },
    });
    await ranks.train(1);
    const { parameters } = ranks.runs[0].steps[0].groups[0];
    await ranks.engines[0].write(parameters.name, 0, new Float32Array([Number.NaN]));
    return ranks;
  };

  it('with a loss that is none either updates nothing, then or later', async () => {
    const ranks = await spoilt(1);
    const before = await ranks.parameters();
    const outcomes = await ranks.train(3, 1);
    for (const [{ halted, gradNorm }] of outcomes) expect([halted, gradNorm]).toEqual([true, Number.NaN]);
    expect(await ranks.parameters()).toEqual(before);
    await ranks.close();
  });

  it('is never saved, however saves and the stop fall: half updated it would be whole to look at', async () => {
    const folder = await mkdtemp(join(tmpdir(), 'not-finite-'));
    const ranks = await startSavingRanks(
      folder,
      {
        devices: 2,
        strategy: offload(),
        optimizer: { kind: 'sgd', lr: 1e30 },
        trainer: { steps: 4 },
        checkpoint: { every: 1 },
      },
      { savesRequested: (_, { steps }) => steps().length, stopRequested: (_, { steps }) => steps().length > 0 },
    );
    for (const result of await ranks.results) {
      const { code, message } = (result as PromiseRejectedResult).reason as StudioError;
      expect(code).toBe('non-finite');
      expect(message).toMatch(/step 1 is not finite .* its updates had begun, so go on from a checkpoint/);
    }
    expect(ranks.events.flatMap((e) => (e.event === 'checkpoint' ? [e.step] : []))).toEqual([1]);
    expect(await readdir(join(folder, 'checkpoints'))).toEqual(['step-000001', 'step-000001.sha256']);
    await rm(folder, { recursive: true });
  });

  it('names the type that gradients travel as, where that alone may have been too small', async () => {
    const strategy = { kind: 'fsdp', mixedPrecision: { reduceDtype: 'float16' } };
    const folder = await mkdtemp(join(tmpdir(), 'not-finite-'));
    const optimizer = { kind: 'sgd', lr: 60 };
    const ranks = await startSavingRanks(folder, { devices: 2, strategy, optimizer, trainer: { steps: 8 } });
    for (const result of await ranks.results)
      expect((result as PromiseRejectedResult).reason).toMatchObject({
        code: 'non-finite',
        message: expect.stringMatching(/loss \d.* gradient norm (NaN|Infinity).*strategy\.mixedPrecision\.reduceDtype/),
      });
    await rm(folder, { recursive: true });
  });

  it('halts every rank', async () => {
    const ranks = await spoilt(2);
    for (const byRank of await ranks.train(3, 1)) expect(byRank.map((o) => o.halted)).toEqual([true, true]);
    await ranks.close();
  });
});
