import { expect, test } from 'vitest';
import { reluGrad } from './relu-grad.ts';

test('lets the gradient through where the output is positive, or not a number', () => {
  const d = new Float32Array([1, 2, 3, 4]);
  reluGrad.run([new Float32Array([0.5, 0, -1, Number.NaN]), d], { n: 4, scale: 1 });
  expect(Array.from(d)).toEqual([1, 0, 0, 4]);
});
