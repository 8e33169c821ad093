import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { parseConfig } from '../config.ts';
import { maskKeys } from '../ops/dropout/dropout-mask.ts';
import { Graph } from '../ops/graph.ts';
import { buildModel } from './build-model.ts';
import { type LlamaConfig, llama } from './llama.ts';
import { parameterCount } from './model.ts';

const small: LlamaConfig = {
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
};

function traced(config: Partial<LlamaConfig> = {}) {
  const graph = new Graph();
  llama({ ...small, ...config }).trace(graph, { batch: 3, tokens: 16 }, { rank: 1, seed: 5 });
  graph.backward();
  return graph;
}

describe('parameters', () => {
  it('are as many as in TinyLlama 1.1B and Llama 3.2 1B', () => {
    const countOf = (model: object) => parameterCount(buildModel(parseConfig({ model }).model, null));
    const big = { kind: 'llama', hiddenSize: 2048, numAttentionHeads: 32 };
    const tiny = { ...big, intermediateSize: 5632, numHiddenLayers: 22, numKeyValueHeads: 4, vocabSize: 32_000 };
    expect(countOf(tiny)).toBe(1_100_048_384);
    const llama32 = { ...big, intermediateSize: 8192, numHiddenLayers: 16, numKeyValueHeads: 8, vocabSize: 128_256 };
    expect(countOf({ ...llama32, tieWordEmbeddings: true })).toBe(1_235_814_400);
  });

  it('each belong to a module of the list, and start as Hugging Face starts them', () => {
    const { modules, parameters } = llama(small);
    const paths = new Set(modules.map((m) => m.path));
    expect(paths.size).toBe(modules.length);
    for (const { name, init } of parameters) {
      expect(paths).toContain(name.slice(0, name.lastIndexOf('.')));
      expect(init).toEqual(name.includes('norm') ? { kind: 'constant', value: 1 } : { kind: 'normal', std: 0.02 });
    }
  });
});

describe('the trace', () => {
  it.each([true, false])('uses every parameter and writes a gradient of each, tied: %s', (tieWordEmbeddings) => {
    const { values } = traced({ tieWordEmbeddings });
    const names = llama({ ...small, tieWordEmbeddings }).parameters.map((p) => p.name);
    const used = values.filter((v) => v.role === 'parameter').map((v) => v.name);
    const written = values.filter((v) => v.role === 'parameter-gradient').map((v) => v.parameter);
    expect(used.sort()).toEqual([...names].sort());
    expect(written.sort()).toEqual([...names].sort());
  });

  it('does the calls of a module inside it: each parameter is used in its own module', () => {
    for (const { module, operands } of traced().calls)
      for (const o of operands)
        if (o.role === 'parameter') expect(module).toBe(o.name.slice(0, o.name.lastIndexOf('.')));
  });

  it('drops attention probabilities alone, with random numbers of its own in each layer', () => {
    const sites = traced({ dropout: 0.1 })
      .calls.filter((c) => c.phase === 'forward' && c.params.maskKey0 !== undefined)
      .map((c) => [c.kernel.name, c.params.maskKey0]);
    expect(sites).toEqual([
      ['attention', maskKeys(5, 1, 0).maskKey0],
      ['attention', maskKeys(5, 1, 1).maskKey0],
    ]);
  });

  it('has one table of angles for all layers', () => {
    const { values, calls } = traced();
    expect(values.filter((v) => v.name.startsWith('model.rotary_emb'))).toHaveLength(1);
    expect(calls.filter((c) => c.kernel.name === 'rotary').map((c) => c.params.back)).toEqual([0, 0, 1, 1]);
  });
});

it('has gradients of exactly the parameters that are not frozen, whichever these are', () => {
  const model = llama(small);
  const names = model.parameters.map((p) => p.name);
  fc.assert(
    fc.property(fc.subarray(names), (trainable) => {
      const graph = new Graph({ frozen: new Set(names.filter((name) => !trainable.includes(name))) });
      model.trace(graph, { batch: 1, tokens: 3 }, { rank: 0, seed: 0 });
      graph.backward();
      const written = graph.values.filter((v) => v.role === 'parameter-gradient').map((v) => v.parameter);
      expect(written.sort()).toEqual([...trainable].sort());
    }),
    { numRuns: 40 },
  );
});

describe('refused before anything starts', () => {
  it.each([
    [{ numAttentionHeads: 7, numKeyValueHeads: 7 }, /model.numAttentionHeads: 7 does not divide model.hiddenSize 256/],
    [{ hiddenSize: 24 }, /model.numAttentionHeads: makes heads of 3, .*even width/],
    [{ numKeyValueHeads: 3 }, /model.numKeyValueHeads: 3 does not divide model.numAttentionHeads 8/],
    [{ numKeyValueHeads: 16 }, /model.numKeyValueHeads: 16 does not divide model.numAttentionHeads 8/],
  ])('%o', (model, message) => {
    expect(() => parseConfig({ model: { kind: 'llama', ...model } })).toThrow(message);
  });
});

it('is wrapped at its blocks by default', () => {
  const { strategy } = parseConfig({ model: { kind: 'llama' } });
  expect(strategy.kind === 'fsdp' && strategy.autoWrapPolicy).toEqual(['LlamaDecoderLayer']);
});
