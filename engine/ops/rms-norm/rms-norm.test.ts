import { expect, test } from 'vitest';
import type { View } from '../kernel.ts';
import { seededRandom } from '../kernel-case.ts';
import { rmsNorm } from './rms-norm.ts';
import { rmsNormGrad } from './rms-norm-grad.ts';
import { rmsNormGradWeight } from './rms-norm-grad-weight.ts';
import { rmsNormResidual } from './rms-norm-residual.ts';

const R = 5;
const D = 11;
const eps = 1e-6;
const random = seededRandom(3);
const uniform = (n: number) => Float32Array.from({ length: n }, () => random() * 2 - 1);
const x = uniform(R * D);
const residual = uniform(R * D);
const weight = uniform(D);
const dy = uniform(R * D);

/** The definition, in float64. */
function reference(input: readonly number[], w: readonly number[]): number[] {
  return input.map((value, i) => {
    const row = input.slice(Math.floor(i / D) * D, (Math.floor(i / D) + 1) * D);
    return (value / Math.sqrt(row.reduce((a, v) => a + v * v, 0) / D + eps)) * w[i % D];
  });
}

/** Central differences of Σ f(at)·dy. */
function slope(at: readonly number[], i: number, f: (at: readonly number[]) => number[]): number {
  const h = 1e-5;
  const loss = (by: number) =>
    f(at.map((value, j) => (j === i ? value + by : value))).reduce((sum, value, j) => sum + value * dy[j], 0);
  return (loss(h) - loss(-h)) / (2 * h);
}

function forward(input: View): { y: Float32Array<ArrayBuffer>; rstd: Float32Array<ArrayBuffer> } {
  const y = new Float32Array(R * D);
  const rstd = new Float32Array(R);
  rmsNorm.run([input, weight, y, rstd], { R, D, eps });
  return { y, rstd };
}

test('with and without residual, follows the definition', () => {
  const expected = reference([...x], [...weight]);
  forward(x).y.forEach((value, i) => {
    expect(value).toBeCloseTo(expected[i], 5);
  });
  const sum = new Float32Array(R * D);
  const y = new Float32Array(R * D);
  rmsNormResidual.run([x, residual, weight, sum, y, new Float32Array(R)], { R, D, eps });
  sum.forEach((value, i) => {
    expect(value).toBe(Math.fround(x[i] + residual[i]));
  });
  expect(y).toEqual(forward(sum).y);
});

test('gradient in the input agrees with finite differences, and is added where asked', () => {
  const { rstd } = forward(x);
  const ds = new Float32Array(R * D).fill(9);
  rmsNormGrad.run([dy, x, rstd, weight, ds], { R, D, accumulate: 0 });
  for (let i = 0; i < R * D; i++) {
    expect(ds[i]).toBeCloseTo(
      slope([...x], i, (at) => reference(at, [...weight])),
      4,
    );
  }
  const added = new Float32Array(R * D).fill(1);
  rmsNormGrad.run([dy, x, rstd, weight, added], { R, D, accumulate: 1 });
  added.forEach((value, i) => {
    expect(value).toBeCloseTo(1 + ds[i], 5);
  });
});

test('gradient in the weight agrees with finite differences, and is added where asked', () => {
  const { rstd } = forward(x);
  const dweight = new Float32Array(D).fill(9);
  rmsNormGradWeight.run([dy, x, rstd, dweight], { R, D, accumulate: 0 });
  for (let c = 0; c < D; c++) {
    expect(dweight[c]).toBeCloseTo(
      slope([...weight], c, (w) => reference([...x], w)),
      4,
    );
  }
  const added = dweight.slice();
  rmsNormGradWeight.run([dy, x, rstd, added], { R, D, accumulate: 1 });
  added.forEach((value, c) => {
    expect(value).toBeCloseTo(2 * dweight[c], 4);
  });
});
