import { expect, test } from 'vitest';
import { gelu } from './gelu.ts';
import { geluGrad } from './gelu-grad.ts';

/** gelu_new as Hugging Face writes it, in float64. */
const expected = (x: number) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));

const xs = Float32Array.from({ length: 81 }, (_, i) => (i - 40) / 5);

test('is 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))', () => {
  const out = new Float32Array(xs.length);
  gelu.run([xs, out], { n: xs.length });
  out.forEach((value, i) => {
    expect(value).toBeCloseTo(expected(xs[i]), 6);
  });
});

test('far out it is x or nothing, and NaN stays', () => {
  const out = new Float32Array(3);
  gelu.run([Float32Array.of(1e6, -1e6, Number.NaN), out], { n: 3 });
  expect(out[0]).toBe(1e6);
  expect(out[1]).toBeCloseTo(0, 20);
  expect(out[2]).toBeNaN();
});

test('the gradient is the slope', () => {
  const d = new Float32Array(xs.length).fill(2);
  geluGrad.run([xs, d], { n: xs.length });
  const h = 1e-5;
  d.forEach((value, i) => {
    expect(value).toBeCloseTo((expected(xs[i] + h) - expected(xs[i] - h)) / h, 5);
  });
});
