import { describe, expect, it } from 'vitest';
import { parseConfig } from '../config.ts';
import { buildModel } from '../model/build-model.ts';
import { elementsOf } from '../ops/graph.ts';
import { pipelineKey } from '../ops/kernel.ts';
import type { StepOutcome } from '../schedule/rank-engine.ts';
import { dispatches } from '../schedule/schedule.ts';
import { freshParameters } from '../trainer/state.ts';
import { type Batch, interpreterPlace, openRanks, type RanksInput } from './fixtures/reference-run.ts';

/** Law 2 for GPT-2 and Llama, tied or not, with dropout: strategies and wrap policies change no bit. */

const shape = { batch: 2, tokens: 5 };
const V = 13;
const data = { kind: 'moby-dick', blockSize: 5 };
const gpt2 = { kind: 'gpt2', vocabSize: V, nLayer: 2, nHead: 3, nEmbd: 6, nPositions: 7, dropout: 0.2 };
const llama = {
  kind: 'llama',
  vocabSize: V,
  hiddenSize: 12,
  intermediateSize: 7,
  numHiddenLayers: 2,
  numAttentionHeads: 6,
  numKeyValueHeads: 2,
  dropout: 0.2,
};
const models = {
  'gpt2, tied': { ...gpt2, tieWeights: true },
  'gpt2, not tied': { ...gpt2, tieWeights: false },
  'llama, tied': { ...llama, tieWordEmbeddings: true },
  'llama, not tied': { ...llama, tieWordEmbeddings: false },
};
const policies = {
  gpt2: [
    ['GPT2Block'],
    ['GPT2MLP', 'GPT2Attention'],
    ['Conv1D', 'LayerNorm', 'Linear'],
    ['GPT2Model', 'Embedding'],
    [],
  ],
  llama: [
    ['LlamaDecoderLayer'],
    ['LlamaMLP', 'LlamaAttention'],
    ['Linear', 'LlamaRMSNorm'],
    ['LlamaModel', 'Embedding'],
    [],
  ],
};

function batch(step: number, rank: number): Batch {
  const token = (i: number) => (7 * step + 5 * rank + 3 * i * i + i) % V;
  const input = Array.from({ length: shape.batch * shape.tokens }, (_, i) => token(i));
  return { input, target: input.map((_, i) => token(i + 1)) };
}

const inputOf = (model: object, config: object): RanksInput => ({
  config: { model, data, ...config },
  shape,
  batch,
});

async function train(input: RanksInput): Promise<{ outcomes: StepOutcome[][]; bits: Map<string, Uint32Array> }> {
  const ranks = await openRanks(interpreterPlace, input);
  const outcomes = await ranks.train(3);
  const parameters = await ranks.parameters();
  await ranks.close();
  return { outcomes, bits: new Map([...parameters].map(([name, v]) => [name, new Uint32Array(v.buffer)])) };
}

describe.each(Object.entries(models))('%s', (_, model) => {
  it.each([1, 2, 3, 4])('%i ranks: DDP and FULL_SHARD, cut anywhere, are equal to the bit', async (devices) => {
    const wanted = await train(inputOf(model, { devices, strategy: 'ddp' }));
    expect(wanted.outcomes.flat().every((o) => Number.isFinite(o.loss) && o.gradNorm > 0)).toBe(true);
    const strategies = [
      { kind: 'ddp', bucketCapMiB: 1e-5 },
      ...policies[model.kind as 'gpt2' | 'llama'].flatMap((autoWrapPolicy) => [
        { kind: 'fsdp', autoWrapPolicy },
        { kind: 'fsdp', autoWrapPolicy, limitAllGathers: false, backwardPrefetch: null },
      ]),
    ];
    for (const strategy of strategies)
      expect(await train(inputOf(model, { devices, strategy })), JSON.stringify(strategy)).toEqual(wanted);
  });

  it('every other strategy, blocks computed again, and micro-batches, to the same bits', async () => {
    const blocks = policies[model.kind as 'gpt2' | 'llama'][0];
    const inner = policies[model.kind as 'gpt2' | 'llama'][1];
    const fsdp = (settings: object) => ({ kind: 'fsdp', autoWrapPolicy: blocks, ...settings });
    const trainer = { accumulateGradBatches: 2, gradientClipVal: 0.5 };
    const wanted = await train(inputOf(model, { devices: 4, trainer, strategy: 'ddp' }));
    for (const strategy of [
      { kind: 'ddp', activationCheckpointingPolicy: blocks },
      fsdp({ activationCheckpointingPolicy: blocks }),
      fsdp({ autoWrapPolicy: inner, activationCheckpointingPolicy: blocks }),
      fsdp({ shardingStrategy: 'NO_SHARD' }),
      fsdp({ cpuOffload: true }),
      fsdp({ shardingStrategy: 'SHARD_GRAD_OP', activationCheckpointingPolicy: blocks }),
      fsdp({ shardingStrategy: 'HYBRID_SHARD', deviceMesh: [2, 2] }),
      fsdp({ shardingStrategy: 'HYBRID_SHARD_ZERO2', deviceMesh: [2, 2] }),
      fsdp({ autoWrapPolicy: null }),
      fsdp({ autoWrapPolicy: { minNumParams: 200 }, forwardPrefetch: true }),
    ])
      expect(await train(inputOf(model, { devices: 4, trainer, strategy })), JSON.stringify(strategy)).toEqual(wanted);
  });

  it('frozen parameters stay as they are, the others train the same under every strategy', async () => {
    const frozen = { ...model, freeze: [model.kind === 'gpt2' ? '*wte*' : '*embed_tokens*', '*.0.*'] };
    const wanted = await train(inputOf(frozen, { devices: 2, strategy: 'ddp' }));
    expect(await train(inputOf(frozen, { devices: 2, strategy: 'fsdp' }))).toEqual(wanted);
    const all = await train(inputOf(model, { devices: 2, strategy: 'ddp' }));
    const fresh = freshParameters(42);
    for (const spec of buildModel(parseConfig({ model, data }).model, null).parameters) {
      const elements = elementsOf(spec.shape);
      const start = new Uint32Array((await fresh(spec, 0, elements)).buffer);
      const isFrozen = /wte|embed_tokens|[.]0[.]/.test(spec.name);
      expect(wanted.bits.get(spec.name)!.join() === start.join(), spec.name).toBe(isFrozen);
      expect(all.bits.get(spec.name)!.join() === start.join(), spec.name).toBe(false);
    }
  });

  it('needs at most 40 pipelines', async () => {
    for (const strategy of ['ddp', 'fsdp']) {
      const ranks = await openRanks(interpreterPlace, inputOf(model, { devices: 3, strategy }));
      const keys = ranks.runs[0].steps[0].schedule.steps
        .flatMap((step) => dispatches(step.action))
        .map(({ kernel, params, tiled }) => pipelineKey(kernel, params, tiled));
      await ranks.close();
      expect(new Set(keys).size).toBeLessThanOrEqual(40);
      expect(new Set(keys).size).toBeGreaterThan(15);
    }
  });
});

describe.each([
  ['gpt2', gpt2, 'tieWeights', 'transformer.wte.weight'],
  ['llama', llama, 'tieWordEmbeddings', 'model.embed_tokens.weight'],
])('%s', (_, model, tie, table) => {
  it('the gradient of a tied parameter is the sum of those of its uses', async () => {
    const fresh = freshParameters(1);
    // The head that is not tied starts as the table.
    const source: RanksInput['source'] = (spec, first, count) =>
      fresh(spec.name === 'lm_head.weight' ? { ...spec, name: table } : spec, first, count);
    const gradients = async (tied: boolean) => {
      const config = { devices: 1, optimizer: { kind: 'sgd', momentum: 0.9 } };
      const ranks = await openRanks(interpreterPlace, { ...inputOf({ ...model, [tie]: tied }, config), source });
      await ranks.train(1);
      const found = await ranks.state('momentum_buffer');
      await ranks.close();
      return found;
    };
    const [tied, apart] = [await gradients(true), await gradients(false)];
    expect(apart.get('lm_head.weight')!.some((v) => v !== 0)).toBe(true);
    tied.get(table)!.forEach((value, i) => {
      expect(value).toBeCloseTo(apart.get(table)![i] + apart.get('lm_head.weight')![i], 7);
    });
  });
});
