import { readFileSync } from 'node:fs';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { parseConfig } from '../config.ts';
import { Graph } from '../ops/graph.ts';
import { buildModel } from './build-model.ts';
import { type DemoTransformerConfig, demoTransformer, positionalRow } from './demo-transformer.ts';
import { parameterCount, parameterOf } from './model.ts';

const reference: { param_shapes: Record<string, number[]>; param_count: number } = JSON.parse(
  readFileSync(new URL('../testdata/demo-transformer/expected.json', import.meta.url), 'utf8'),
);
const config: DemoTransformerConfig = { vocabSize: 97, ninp: 32, nhead: 4, nhid: 64, nlayers: 2, dropout: 0 };

describe('parameters', () => {
  it('have the names, shapes and order of real PyTorch', () => {
    const model = demoTransformer(config);
    expect(model.parameters.map((p) => [p.name, p.shape])).toEqual(Object.entries(reference.param_shapes));
    expect(parameterCount(model)).toBe(reference.param_count);
  });

  it('are 14,635,678 by default, and as many as the formula says for any size', () => {
    expect(parameterCount(buildModel(parseConfig({}).model, 33_278))).toBe(14_635_678);
    fc.assert(
      fc.property(
        fc.record({ V: fc.integer({ min: 2, max: 60 }), half: fc.nat(20), H: fc.nat(40), L: fc.nat(4) }),
        ({ V, half, H: h, L: l }) => {
          const [D, H, L] = [2 * (half + 1), h + 1, l + 1];
          const attention = 4 * D * D + 4 * D;
          const feedForward = 2 * D * H + H + D;
          const count =
            2 * V * D + V + 4 * D + L * (attention + feedForward + 4 * D + 2 * attention + feedForward + 6 * D);
          const model = demoTransformer({ vocabSize: V, ninp: D, nhead: 1, nhid: H, nlayers: L, dropout: 0 });
          expect(parameterCount(model)).toBe(count);
        },
      ),
      { seed: 1 },
    );
  });

  it('are found by name', () => {
    const model = demoTransformer(config);
    expect(parameterOf(model, 'decoder.bias').shape).toEqual([97]);
    expect(() => parameterOf(model, 'lm_head.weight')).toThrow(/no parameter lm_head.weight/);
  });

  it('each belong to a module of the list, and each module of a class has its path once', () => {
    const { modules, parameters } = demoTransformer(config);
    const paths = new Set(modules.map((m) => m.path));
    expect(paths.size).toBe(modules.length);
    for (const { name } of parameters) expect(paths).toContain(name.slice(0, name.lastIndexOf('.')));
    for (const path of paths) if (path.includes('.')) expect(paths).toContain(path.slice(0, path.lastIndexOf('.')));
  });
});

describe('the trace', () => {
  const traced = (dropout = 0) => {
    const graph = new Graph();
    demoTransformer({ ...config, dropout }).trace(graph, { batch: 3, tokens: 12 }, { rank: 1, seed: 5 });
    graph.backward();
    return graph;
  };

  it('uses every parameter, with its shape, and writes a gradient of each', () => {
    const { values } = traced();
    const shapes = (role: string) =>
      new Map(values.filter((v) => v.role === role).map((v) => [v.parameter ?? v.name, v.shape]));
    const wanted = new Map(Object.entries(reference.param_shapes));
    expect(new Map([...shapes('parameter')].sort())).toEqual(new Map([...wanted].sort()));
    expect(new Map([...shapes('parameter-gradient')].sort())).toEqual(new Map([...wanted].sort()));
  });

  it('does the calls of a module inside it: each parameter is used in its own module', () => {
    for (const { module, operands } of traced().calls)
      for (const o of operands)
        if (o.role === 'parameter') expect(module).toBe(o.name.slice(0, o.name.lastIndexOf('.')));
  });

  it('drops nothing at 0, and with random numbers of its own at each place', () => {
    const sites = (dropout: number) => {
      const calls = traced(dropout).calls.filter((c) => c.phase === 'forward' && c.params.maskKey0 !== undefined);
      return calls.map((c) => c.params.maskKey0);
    };
    expect(traced(0).calls.some((c) => c.kernel.name.startsWith('dropout'))).toBe(false);
    // Two inputs; an encoder layer has 4, a decoder layer 6.
    expect(new Set(sites(0.1)).size).toBe(2 + 2 * 4 + 2 * 6);
    expect(sites(0.1)).toHaveLength(2 + 2 * 4 + 2 * 6);
  });
});

it('the positional row is that of position T, sines and cosines in turn', () => {
  const pe = [
    -0.9589242339, 0.2836621702, 0.4794255197, 0.8775826097, 0.0499791652, 0.9987502694, 0.0049999789, 0.999987483,
  ];
  const row = positionalRow(5, 8);
  // PyTorch's row is rounded in float32 throughout.
  for (const [i, value] of pe.entries()) expect(Math.abs(row[i] - value)).toBeLessThan(1e-7);
  expect([...positionalRow(0, 4)]).toEqual([0, 1, 0, 1]);
});

describe('the model of a config', () => {
  it('takes the vocabulary of the data, or a larger one', () => {
    const model = parseConfig({ model: { kind: 'demo-transformer', vocabSize: 50 } }).model;
    expect(buildModel(model, 40).vocabSize).toBe(50);
    expect(buildModel(model, null).vocabSize).toBe(50);
    expect(() => buildModel(model, 51)).toThrow(/model.vocabSize: 50 is fewer than the 51 words/);
    expect(buildModel(parseConfig({}).model, 7).vocabSize).toBe(7);
    expect(() => buildModel(parseConfig({}).model, null)).toThrow(/model.vocabSize/);
  });
});
