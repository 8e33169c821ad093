import { afterAll, beforeAll, expect, it } from 'vitest';
import { expectAsPlanned, expectSameBits } from './fixtures/laws.ts';
import { interpreterPlace, openRanks, type Place, softwareGpuPlace } from './fixtures/reference-run.ts';

/** What backward computes again rather than keep (norms, activation functions): laws 1 and 2, whatever is kept. */

let gpu: Awaited<ReturnType<typeof softwareGpuPlace>>;
beforeAll(async () => {
  gpu = await softwareGpuPlace();
});
afterAll(() => gpu?.device.close());

const models = {
  TransformerEncoderLayer: {
    kind: 'demo-transformer',
    vocabSize: 97,
    ninp: 12,
    nhead: 3,
    nhid: 20,
    nlayers: 2,
    dropout: 0.2,
  },
  GPT2Block: { kind: 'gpt2', vocabSize: 97, nEmbd: 12, nHead: 3, nLayer: 2, nPositions: 40, dropout: 0.2 },
  LlamaDecoderLayer: {
    kind: 'llama',
    vocabSize: 97,
    hiddenSize: 12,
    intermediateSize: 20,
    numAttentionHeads: 3,
    numKeyValueHeads: 3,
    numHiddenLayers: 2,
  },
};

async function trained(place: Place, againFromBytes: number, config: object) {
  const ranks = await openRanks({ ...place, profile: { ...place.profile, againFromBytes } }, { config });
  try {
    const result = { outcomes: await ranks.train(2), parameters: await ranks.parameters() };
    expectAsPlanned(ranks, [0, 1], JSON.stringify(config));
    return { result, run: ranks.runs[0], liveBytes: ranks.engines[0].memory().liveBytes };
  } finally {
    await ranks.close();
  }
}

const cases = Object.entries(models).flatMap(([block, model]) =>
  ['32-true', '16-mixed'].map((precision) => [block, precision, model] as const),
);

it.each(cases)('of %s in %s: no bit changes, on no strategy, and less is held', async (block, precision, model) => {
  const strategies = [
    'ddp',
    { kind: 'fsdp', autoWrapPolicy: { minNumParams: 1 } },
    { kind: 'fsdp', autoWrapPolicy: [block], activationCheckpointingPolicy: [block] },
  ];
  const config = (strategy: unknown) => ({ devices: 2, model, precision, strategy });
  const kept = await trained(interpreterPlace, Number.MAX_SAFE_INTEGER, config('ddp'));
  for (const [i, strategy] of strategies.entries()) {
    const again = await trained(interpreterPlace, 0, config(strategy));
    expectSameBits(again.result, kept.result, `${block}, ${JSON.stringify(strategy)}`);
    // Of halves, what packs them is live as well, which in so small a model is as much.
    if (i === 0 && precision === '32-true') expect(again.liveBytes).toBeLessThan(kept.liveBytes);
  }
});

it('on a software GPU too', async () => {
  const config = { devices: 2, model: models.TransformerEncoderLayer, strategy: 'fsdp' };
  const kept = await trained(gpu, Number.MAX_SAFE_INTEGER, config);
  expectSameBits((await trained(gpu, 0, config)).result, kept.result, 'FULL_SHARD');
});

const wide = {
  demo: { ...models.TransformerEncoderLayer, nhid: 400 },
  gpt2: { ...models.GPT2Block, nEmbd: 24, nHead: 2 },
};

it.each(Object.entries(wide))('%s: hidden layers are computed again where the budget has no room', async (_, model) => {
  for (const precision of ['32-true', '16-mixed']) {
    for (const strategy of ['ddp', { kind: 'fsdp', autoWrapPolicy: { minNumParams: 1 } }]) {
      const config = { devices: 2, model, precision, strategy };
      const kept = await trained(interpreterPlace, 0, config);
      expect(kept.run.hidden).toBe('kept');
      const memoryBudgetMiB = (kept.run.memory.reservedBytes - 1) / 2 ** 20;
      const again = await trained(interpreterPlace, 0, { ...config, memoryBudgetMiB });
      expect(again.run.hidden).toBe('again');
      expect(again.run.memory.reservedBytes).toBeLessThan(kept.run.memory.reservedBytes);
      expectSameBits(again.result, kept.result, `${precision}, ${JSON.stringify(strategy)}`);
    }
  }
});
