import { expect, test } from 'vitest';
import { seededRandom } from '../kernel-case.ts';
import { siluMul } from './silu-mul.ts';
import { siluMulGrad } from './silu-mul-grad.ts';

const R = 3;
const I = 5;
const random = seededRandom(4);
const gu = Float32Array.from({ length: 2 * R * I }, () => random() * 8 - 4);
const dout = Float32Array.from({ length: R * I }, () => random() * 2 - 1);

/** The definition, in float64. */
function expected(values: ArrayLike<number>): number[] {
  return Array.from({ length: R * I }, (_, e) => {
    const gate = values[2 * Math.floor(e / I) * I + (e % I)];
    return (gate / (1 + Math.exp(-gate))) * values[(2 * Math.floor(e / I) + 1) * I + (e % I)];
  });
}

test('is silu(gate)·up', () => {
  const out = new Float32Array(R * I);
  siluMul.run([gu, out], { R, I });
  const want = expected(gu);
  out.forEach((value, i) => {
    expect(value).toBeCloseTo(want[i], 5);
  });
});

test('the gradient takes the place of the input and is the slope', () => {
  const grad = gu.slice();
  siluMulGrad.run([dout, grad], { R, I });
  const loss = (values: ArrayLike<number>) => expected(values).reduce((sum, value, i) => sum + value * dout[i], 0);
  const h = 1e-5;
  grad.forEach((value, i) => {
    const moved = (by: number) => Array.from(gu, (v, j) => (j === i ? v + by : v));
    expect(value).toBeCloseTo((loss(moved(h)) - loss(moved(-h))) / (2 * h), 4);
  });
});
