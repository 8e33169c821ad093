import { readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { fromHuggingFace } from './hugging-face-config.ts';

const read = (kind: string) =>
  JSON.parse(readFileSync(new URL(`../testdata/${kind}/hf/config.json`, import.meta.url), 'utf8'));

it('reads what save_pretrained wrote', () => {
  expect(fromHuggingFace(read('gpt2'), 'config.json')).toEqual({
    kind: 'gpt2',
    vocabSize: 101,
    nLayer: 2,
    nHead: 4,
    nEmbd: 32,
    nPositions: 24,
    tieWeights: true,
    dropout: 0,
    freeze: [],
  });
  expect(fromHuggingFace(read('llama'), 'config.json')).toEqual({
    kind: 'llama',
    vocabSize: 101,
    hiddenSize: 32,
    intermediateSize: 88,
    numHiddenLayers: 2,
    numAttentionHeads: 4,
    numKeyValueHeads: 2,
    ropeTheta: 10_000,
    rmsNormEps: 1e-6,
    tieWordEmbeddings: false,
    dropout: 0,
    freeze: [],
  });
});

it('reads files of before rope_parameters', () => {
  const { rope_parameters: _, num_key_value_heads: __, ...older } = read('llama');
  expect(fromHuggingFace({ ...older, rope_theta: 500_000 }, 'c')).toMatchObject({
    ropeTheta: 500_000,
    numKeyValueHeads: 4,
  });
});

it.each([
  ['gpt2', { activation_function: 'relu' }, /activation_function/],
  ['gpt2', { n_inner: 100 }, /n_inner: 100 is not 4 times n_embd 32/],
  ['gpt2', { scale_attn_by_inverse_layer_idx: true }, /scale_attn_by_inverse_layer_idx/],
  ['llama', { rope_parameters: { rope_type: 'llama3', rope_theta: 5e5 } }, /rope_parameters.rope_type/],
  ['llama', { head_dim: 16 }, /head_dim: 16 is not hidden_size/],
  ['llama', { attention_bias: true }, /attention_bias/],
  ['llama', { model_type: 'mistral' }, /model_type/],
  ['llama', { num_key_value_heads: 3 }, /num_key_value_heads: 3 does not divide/],
])('refuses by name what it does not compute: %s %o', (kind, change, message) => {
  expect(() => fromHuggingFace({ ...read(kind), ...change }, 'hf/config.json')).toThrow(message);
  expect(() => fromHuggingFace({ ...read(kind), ...change }, 'hf/config.json')).toThrow(/^hf\/config.json describes/);
});
