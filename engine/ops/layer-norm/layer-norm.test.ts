import { expect, test } from 'vitest';
import { seededRandom } from '../kernel-case.ts';
import { layerNorm } from './layer-norm.ts';
import { layerNormGrad } from './layer-norm-grad.ts';
import { layerNormGradWeight } from './layer-norm-grad-weight.ts';
import { layerNormResidual } from './layer-norm-residual.ts';

const R = 5;
const D = 11;
const eps = 1e-5;
const random = seededRandom(3);
const uniform = (n: number) => Float32Array.from({ length: n }, () => random() * 2 - 1);
const x = uniform(R * D);
const residual = uniform(R * D);
const weight = uniform(D);
const bias = uniform(D);
const dy = uniform(R * D);

/** The definition, in float64. */
function reference(input: readonly number[], w: readonly number[], b: readonly number[]): number[] {
  return input.map((value, i) => {
    const row = input.slice(Math.floor(i / D) * D, (Math.floor(i / D) + 1) * D);
    const mean = row.reduce((a, v) => a + v, 0) / D;
    const variance = row.reduce((a, v) => a + (v - mean) ** 2, 0) / D;
    return ((value - mean) / Math.sqrt(variance + eps)) * w[i % D] + b[i % D];
  });
}

const lossOf = (y: readonly number[]) => y.reduce((sum, value, i) => sum + value * dy[i], 0);

/** d lossOf(f(at)) / d at[i], by central differences. */
function slope(at: readonly number[], i: number, f: (at: readonly number[]) => number[]): number {
  const h = 1e-5;
  const moved = (by: number) => at.map((value, j) => (j === i ? value + by : value));
  return (lossOf(f(moved(h))) - lossOf(f(moved(-h)))) / (2 * h);
}

function forward(input: Float32Array): { y: Float32Array; stats: Float32Array } {
  const y = new Float32Array(R * D);
  const stats = new Float32Array(2 * R);
  layerNorm.run([input, weight, bias, y, stats] as never, { R, D, eps });
  return { y, stats };
}

test('layer norm, with and without residual, follows the definition', () => {
  const expected = reference([...x], [...weight], [...bias]);
  forward(x).y.forEach((value, i) => {
    expect(value).toBeCloseTo(expected[i], 5);
  });

  const sum = new Float32Array(R * D);
  const y = new Float32Array(R * D);
  layerNormResidual.run([x, residual, weight, bias, sum, y, new Float32Array(2 * R)] as never, { R, D, eps });
  sum.forEach((value, i) => {
    expect(value).toBe(Math.fround(x[i] + residual[i]));
  });
  expect(y).toEqual(forward(sum).y);
});

test('a large mean costs no digits', () => {
  const far = x.map((value) => Math.round(value * 64) / 64 + 4096);
  const near = x.map((value) => Math.round(value * 64) / 64);
  forward(far).y.forEach((value, i) => {
    expect(value).toBeCloseTo(forward(near).y[i], 3);
  });
});

test('gradient in the input agrees with finite differences, and is added where asked', () => {
  const { stats } = forward(x);
  const ds = new Float32Array(R * D).fill(9);
  layerNormGrad.run([dy, x, stats, weight, ds] as never, { R, D, accumulate: 0 });
  for (let i = 0; i < R * D; i++) {
    expect(ds[i]).toBeCloseTo(
      slope([...x], i, (at) => reference(at, [...weight], [...bias])),
      4,
    );
  }
  const added = new Float32Array(R * D).fill(1);
  layerNormGrad.run([dy, x, stats, weight, added] as never, { R, D, accumulate: 1 });
  added.forEach((value, i) => {
    expect(value).toBeCloseTo(1 + ds[i], 5);
  });
});

test('gradients in weight and bias agree with finite differences, and are added where asked', () => {
  const { stats } = forward(x);
  const dweight = new Float32Array(D).fill(9);
  const dbias = new Float32Array(D).fill(9);
  layerNormGradWeight.run([dy, x, stats, dweight, dbias] as never, { R, D, accumulate: 0 });
  for (let c = 0; c < D; c++) {
    expect(dweight[c]).toBeCloseTo(
      slope([...weight], c, (w) => reference([...x], w, [...bias])),
      4,
    );
    expect(dbias[c]).toBeCloseTo(
      slope([...bias], c, (b) => reference([...x], [...weight], b)),
      4,
    );
  }
  const [w, b] = [dweight.slice(), dbias.slice()];
  layerNormGradWeight.run([dy, x, stats, dweight, dbias] as never, { R, D, accumulate: 1 });
  for (let c = 0; c < D; c++) {
    expect(dweight[c]).toBeCloseTo(2 * w[c], 4);
    expect(dbias[c]).toBeCloseTo(2 * b[c], 4);
  }
});
