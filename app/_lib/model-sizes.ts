import { type Draft, same, valueAt, withValue } from './config-draft.ts';

/** A model of a known size: what its section of the config is filled with, and the tokens that its vocabulary is for. */
export interface ModelSize {
  readonly label: string;
  readonly about: string;
  readonly params: number;
  readonly tokenizer: 'word' | 'gpt2';
  readonly model: { readonly kind: string } & Readonly<Record<string, unknown>>;
}

const demo = (
  label: string,
  params: number,
  [ninp, nhead, nhid, nlayers]: readonly [number, number, number, number],
  about: string,
): ModelSize => ({
  label,
  about,
  params,
  tokenizer: 'word',
  model: { kind: 'demo-transformer', vocabSize: 33_278, ninp, nhead, nhid, nlayers },
});

const gpt2 = (
  label: string,
  params: number,
  nLayer: number,
  nHead: number,
  nEmbd: number,
  about: string,
): ModelSize => ({
  label,
  about,
  params,
  tokenizer: 'gpt2',
  model: { kind: 'gpt2', nLayer, nHead, nEmbd, nPositions: 1024, vocabSize: 50_257, tieWeights: true },
});

const llama = (label: string, params: number, about: string, model: Readonly<Record<string, unknown>>): ModelSize => ({
  label,
  about,
  params,
  tokenizer: 'gpt2',
  model: { kind: 'llama', vocabSize: 50_257, ropeTheta: 10_000, rmsNormEps: 1e-5, tieWordEmbeddings: true, ...model },
});

/** Models from tiny to above a billion parameters, each written out in the form once chosen. */
export const MODEL_SIZES: readonly ModelSize[] = [
  demo('tiny', 2_205_950, [32, 2, 64, 2], 'For a look: mostly its table of words'),
  demo('default', 14_635_678, [200, 2, 200, 2], 'As Lightning’s demo has it'),
  demo('medium', 122_388_990, [512, 8, 2048, 12], 'Twelve encoder and twelve decoder layers'),
  demo('guide', 1_008_763_390, [1024, 64, 4096, 32], 'The model of Lightning Fabric’s FSDP guide'),
  gpt2('tiny', 7_357_312, 4, 4, 128, 'For a look: mostly its table of tokens'),
  gpt2('small', 124_439_808, 12, 12, 768, 'As Hugging Face’s gpt2'),
  gpt2('medium', 354_823_168, 24, 16, 1024, 'As gpt2-medium'),
  gpt2('large', 774_030_080, 36, 20, 1280, 'As gpt2-large'),
  gpt2('XL', 1_557_611_200, 48, 25, 1600, 'As gpt2-xl'),
  llama('tiny', 7_171_328, 'For a look: mostly its table of tokens', {
    hiddenSize: 128,
    intermediateSize: 352,
    numHiddenLayers: 4,
    numAttentionHeads: 4,
    numKeyValueHeads: 2,
  }),
  llama('small', 114_114_048, 'The size of GPT-2 small, with GPT-2’s tokens', {
    hiddenSize: 768,
    intermediateSize: 2048,
    numHiddenLayers: 12,
    numAttentionHeads: 12,
    numKeyValueHeads: 4,
  }),
  llama('1B', 1_235_814_400, 'As Llama 3.2 1B, its rope scaling apart', {
    hiddenSize: 2048,
    intermediateSize: 8192,
    numHiddenLayers: 16,
    numAttentionHeads: 32,
    numKeyValueHeads: 8,
    vocabSize: 128_256,
    ropeTheta: 500_000,
  }),
];

/** The sizes of the draft's kind of model. */
export function sizesFor(draft: Draft): readonly ModelSize[] {
  const kind = valueAt(draft, 'model.kind');
  return MODEL_SIZES.filter(({ model }) => model.kind === kind);
}

/** Whether the draft's model is of this size, whatever its dropout and what it freezes. */
export function hasSize(draft: Draft, { model }: ModelSize): boolean {
  return Object.entries(model).every(([key, value]) => same(valueAt(draft, `model.${key}`), value));
}

/** The draft with its model filled in, and a text in the tokens that this model's vocabulary is for. */
export function withSize(draft: Draft, { model, tokenizer }: ModelSize): Draft {
  const filled = { ...draft, model: { ...(draft.model as object), ...model } };
  return valueAt(draft, 'data.kind') === 'batches' ? filled : withValue(filled, 'data.tokenizer', tokenizer);
}
