import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { parseConfig } from '../config.ts';
import { Graph } from '../ops/graph.ts';
import { buildModel } from './build-model.ts';
import { type Gpt2Config, gpt2 } from './gpt2.ts';
import { initialValues } from './init.ts';
import { parameterCount, parameterOf } from './model.ts';

const small: Gpt2Config = {
  vocabSize: 101,
  nLayer: 2,
  nHead: 4,
  nEmbd: 32,
  nPositions: 24,
  tieWeights: true,
  dropout: 0,
};

function traced(config: Partial<Gpt2Config> = {}) {
  const graph = new Graph();
  gpt2({ ...small, ...config }).trace(graph, { batch: 3, tokens: 16 }, { rank: 1, seed: 5 });
  graph.backward();
  return graph;
}

describe('parameters', () => {
  it('are those of GPT-2 small by default: 124,439,808', () => {
    const config = parseConfig({ model: { kind: 'gpt2', vocabSize: 50_257 } }).model;
    expect(parameterCount(buildModel(config, null))).toBe(124_439_808);
  });

  it('start as Hugging Face starts them', () => {
    const model = gpt2({ ...small, nEmbd: 64, nLayer: 8, tieWeights: false });
    const std = (name: string) => {
      const spec = parameterOf(model, name);
      const values = initialValues(spec, 42, 0, 4096);
      return Math.sqrt(values.reduce((sum, v) => sum + v * v, 0) / values.length);
    };
    for (const name of ['transformer.wte', 'transformer.h.3.mlp.c_fc', 'transformer.h.7.attn.c_attn', 'lm_head'])
      expect(Math.abs(std(`${name}.weight`) / 0.02 - 1)).toBeLessThan(0.05);
    for (const name of ['transformer.h.0.attn.c_proj', 'transformer.h.7.mlp.c_proj'])
      expect(Math.abs(std(`${name}.weight`) / (0.02 / Math.sqrt(16)) - 1)).toBeLessThan(0.05);
    expect(parameterOf(model, 'transformer.ln_f.weight').init).toEqual({ kind: 'constant', value: 1 });
    expect(parameterOf(model, 'transformer.h.1.mlp.c_fc.bias').init).toEqual({ kind: 'constant', value: 0 });
  });

  it('each belong to a module of the list', () => {
    const { modules, parameters } = gpt2(small);
    const paths = new Set(modules.map((m) => m.path));
    expect(paths.size).toBe(modules.length);
    for (const { name } of parameters) expect(paths).toContain(name.slice(0, name.lastIndexOf('.')));
    for (const path of paths) if (path.includes('.')) expect(paths).toContain(path.slice(0, path.lastIndexOf('.')));
  });
});

describe('the trace', () => {
  it.each([true, false])('uses every parameter and writes a gradient of each, tied: %s', (tieWeights) => {
    const { values } = traced({ tieWeights });
    const names = gpt2({ ...small, tieWeights }).parameters.map((p) => p.name);
    const used = values.filter((v) => v.role === 'parameter').map((v) => v.name);
    const written = values.filter((v) => v.role === 'parameter-gradient').map((v) => v.parameter);
    expect(used.sort()).toEqual([...names].sort());
    expect(written.sort()).toEqual([...names].sort());
  });

  it('adds the embedding to the gradient that the tied head has written', () => {
    const writes = traced().calls.filter((c) => c.operands.some((o) => o.parameter === 'transformer.wte.weight'));
    expect(writes.map((c) => [c.module, c.kernel.name])).toEqual([
      ['lm_head', 'matmul-tn'],
      ['transformer', 'embedding-grad'],
    ]);
  });

  it('does the calls of a block inside it, and has one gradient for the whole residual stream', () => {
    const { calls } = traced();
    for (const { module, operands } of calls)
      for (const o of operands)
        if (o.role === 'parameter' && o.name.includes('.h.'))
          expect(module).toBe(o.name.slice(0, o.name.lastIndexOf('.')));
    const norms = calls.filter((c) => c.kernel.name === 'layer-norm-grads');
    expect(new Set(norms.map((c) => c.operands[4].id)).size).toBe(1);
    expect(norms.map((c) => c.params.accumulate)).toEqual([0, 1, 1, 1, 1]);
    expect(calls.some((c) => c.phase === 'backward' && c.kernel.name === 'add')).toBe(false);
  });

  it('drops nothing at 0, and with random numbers of its own at each place', () => {
    const sites = (dropout: number) =>
      traced({ dropout })
        .calls.filter((c) => c.phase === 'forward' && c.params.maskKey0 !== undefined)
        .map((c) => c.params.maskKey0);
    expect(traced().calls.some((c) => c.kernel.name === 'dropout')).toBe(false);
    // The embedding, and in each block the probabilities and both branches.
    expect(new Set(sites(0.1)).size).toBe(1 + 2 * 3);
    expect(sites(0.1)).toHaveLength(1 + 2 * 3);
  });

  it('refuses a sequence longer than its positions', () => {
    const trace = () => gpt2(small).trace(new Graph(), { batch: 1, tokens: 25 }, { rank: 0, seed: 0 });
    expect(trace).toThrow(/model.nPositions: 24 positions cannot hold sequences of 25 tokens/);
  });
});

it('has gradients of exactly the parameters that are not frozen, whichever these are', () => {
  const model = gpt2(small);
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
    [{ nHead: 5 }, /model.nHead: 5 does not divide model.nEmbd 768/],
    [{ nPositions: 34 }, /model.nPositions: 34 positions cannot hold data.blockSize 35 tokens/],
  ])('%o', (model, message) => {
    expect(() => parseConfig({ model: { kind: 'gpt2', ...model } })).toThrow(message);
  });

  it('not what a batches file may hold: its shapes are seen when it is read', () => {
    const data = { kind: 'batches', path: 'b.json' };
    expect(() => parseConfig({ model: { kind: 'gpt2', nPositions: 2 }, data })).not.toThrow();
  });
});

it('is wrapped at its blocks by default, at what is written otherwise', () => {
  const policyOf = (config: object) => {
    const { strategy } = parseConfig({ model: { kind: 'gpt2' }, ...config });
    return strategy.kind === 'fsdp' ? strategy.autoWrapPolicy : 'ddp';
  };
  expect(policyOf({})).toEqual(['GPT2Block']);
  expect(policyOf({ strategy: 'fsdp' })).toEqual(['GPT2Block']);
  expect(policyOf({ strategy: { kind: 'fsdp', limitAllGathers: false } })).toEqual(['GPT2Block']);
  expect(policyOf({ strategy: { kind: 'fsdp', autoWrapPolicy: ['Conv1D'] } })).toEqual(['Conv1D']);
  expect(policyOf({ strategy: 'ddp' })).toBe('ddp');
});
