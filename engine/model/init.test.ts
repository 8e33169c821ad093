import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { normalQuantiles } from '../ops/init-values/quantiles.ts';
import { demoTransformer } from './demo-transformer.ts';
import { initialValues } from './init.ts';
import { type Init, parameterOf } from './model.ts';

const spec = (init: Init, name = 'weight', shape = [200, 300]) => ({ name, shape, init });
const all = (init: Init, count = 60_000, seed = 42, name = 'weight') => initialValues(spec(init, name), seed, 0, count);
const mean = (x: Float32Array) => x.reduce((a, b) => a + b, 0) / x.length;
const deviation = (x: Float32Array) => Math.sqrt(x.reduce((a, b) => a + b * b, 0) / x.length - mean(x) ** 2);

describe('distributions', () => {
  it('uniform: within the bound, filling it evenly', () => {
    const values = all({ kind: 'uniform', bound: 0.25 });
    expect(Math.max(...values)).toBeLessThan(0.25);
    expect(Math.min(...values)).toBeGreaterThan(-0.25);
    expect(Math.max(...values)).toBeGreaterThan(0.249);
    expect(Math.abs(mean(values))).toBeLessThan(0.002);
    expect(deviation(values)).toBeCloseTo(0.25 / Math.sqrt(3), 2);
    const tenths = new Array<number>(10).fill(0);
    for (const v of values) tenths[Math.floor((v / 0.25 + 1) * 5)]++;
    for (const n of tenths) expect(Math.abs(n - 6000)).toBeLessThan(400);
  });

  it('normal: mean 0, the deviation asked for, the tails of a normal distribution', () => {
    const values = all({ kind: 'normal', std: 2 });
    expect(Math.abs(mean(values))).toBeLessThan(0.03);
    expect(deviation(values)).toBeCloseTo(2, 1);
    const within = (k: number) => values.filter((v) => Math.abs(v) < 2 * k).length / values.length;
    expect(within(1)).toBeCloseTo(0.6827, 2);
    expect(within(2)).toBeCloseTo(0.9545, 2);
    expect(within(3)).toBeCloseTo(0.9973, 2);
  });

  it('constant: just that', () => {
    expect(all({ kind: 'constant', value: 1 }, 5)).toEqual(new Float32Array([1, 1, 1, 1, 1]));
  });

  it('quantiles rise, are odd, and are those of N(0, 1)', () => {
    const q = normalQuantiles();
    for (let i = 1; i < q.length; i++) expect(q[i] >= q[i - 1]).toBe(true);
    for (let i = 0; i < 100; i++) expect(q[i]).toBe(-q[q.length - 1 - i]);
    // Φ⁻¹(0.975) and Φ⁻¹(0.8413447)
    expect(q[Math.round(0.975 * 65_536 - 0.5)]).toBeCloseTo(1.959964, 3);
    expect(q[Math.round(0.8413447 * 65_536 - 0.5)]).toBeCloseTo(1, 3);
  });

  it('bounds are those of the PyTorch initialisers', () => {
    const model = demoTransformer({ vocabSize: 97, ninp: 32, nhead: 4, nhid: 64, nlayers: 1, dropout: 0 });
    const bound = (name: string) => {
      const { init } = parameterOf(model, name);
      return init.kind === 'uniform' ? init.bound : init;
    };
    const layer = 'transformer.encoder.layers.0';
    expect(bound('embedding.weight')).toEqual({ kind: 'normal', std: 1 });
    expect(bound(`${layer}.self_attn.in_proj_weight`)).toBeCloseTo(Math.sqrt(6 / (4 * 32)), 12);
    expect(bound(`${layer}.self_attn.out_proj.weight`)).toBeCloseTo(Math.sqrt(6 / 64), 12);
    expect(bound(`${layer}.linear1.weight`)).toBeCloseTo(Math.sqrt(6 / 96), 12);
    expect(bound(`${layer}.linear1.bias`)).toBeCloseTo(1 / Math.sqrt(32), 12);
    expect(bound(`${layer}.linear2.bias`)).toBeCloseTo(1 / Math.sqrt(64), 12);
    expect(bound(`${layer}.self_attn.in_proj_bias`)).toEqual({ kind: 'constant', value: 0 });
    expect(bound(`${layer}.self_attn.out_proj.bias`)).toEqual({ kind: 'constant', value: 0 });
    expect(bound(`${layer}.norm1.weight`)).toEqual({ kind: 'constant', value: 1 });
    expect(bound('decoder.weight')).toBeCloseTo(1 / Math.sqrt(32), 12);
    expect(bound('decoder.bias')).toBeCloseTo(1 / Math.sqrt(32), 12);
  });
});

describe('values', () => {
  const anyInit = fc.constantFrom<Init>(
    { kind: 'uniform', bound: 0.1 },
    { kind: 'normal', std: 1 },
    { kind: 'constant', value: 0 },
  );

  it('of any part are the same part of the whole', () => {
    fc.assert(
      fc.property(anyInit, fc.nat(900), fc.nat(100), fc.nat(), (init, first, count, seed) => {
        const whole = initialValues(spec(init), seed, 0, 1000);
        expect(initialValues(spec(init), seed, first, count)).toEqual(whole.slice(first, first + count));
      }),
      { seed: 1 },
    );
  });

  it('differ by seed and by name, and do not repeat beyond 2^32', () => {
    const init: Init = { kind: 'uniform', bound: 1 };
    const base = all(init, 100);
    const equal = (other: Float32Array) => other.filter((v, i) => v === base[i]).length;
    expect(equal(all(init, 100, 43))).toBeLessThan(3);
    expect(equal(all(init, 100, 42, 'bias'))).toBeLessThan(3);
    expect(equal(initialValues(spec(init), 42, 2 ** 32, 100))).toBeLessThan(3);
    expect(equal(initialValues(spec(init), 42, 100, 100))).toBeLessThan(3);
  });

  it('over 2^32 elements are those of both sides', () => {
    for (const init of [
      { kind: 'uniform', bound: 1 },
      { kind: 'normal', std: 1 },
    ] as const) {
      const across = initialValues(spec(init), 42, 2 ** 32 - 30, 100);
      expect(across.slice(0, 30)).toEqual(initialValues(spec(init), 42, 2 ** 32 - 30, 30));
      expect(across.slice(30)).toEqual(initialValues(spec(init), 42, 2 ** 32, 70));
    }
  });

  it('of neighbouring names and seeds are not shifted copies of each other', () => {
    const init: Init = { kind: 'uniform', bound: 1 };
    const base = new Set(all(init, 2000));
    for (const other of [all(init, 2000, 43), all(init, 2000, 42, 'weighu'), all(init, 2000, 42 ^ 1)])
      expect(other.filter((v) => base.has(v)).length).toBeLessThan(20);
  });
});
