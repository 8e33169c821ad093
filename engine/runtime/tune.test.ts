import { expect, test } from 'vitest';
import { tiledVariant, variantClass } from '../ops/kernel.ts';
import { fastest, tunedCalls } from './tune.ts';

test('the default stays unless another variant is faster by more than noise', () => {
  expect(fastest([10e-6, 9.9e-6, 12e-6], 0)).toBe(0);
  expect(fastest([10e-6, 9e-6, 12e-6], 0)).toBe(1);
  expect(fastest([10e-6, 9e-6, 8e-6], 1)).toBe(2);
});

test('each class of shapes is measured once, on a shape that runs tiled', () => {
  const classes = tunedCalls.map(({ kernel, params }) => variantClass(kernel, params));
  expect(new Set(classes).size).toBe(classes.length);
  for (const { kernel, params } of tunedCalls) expect(tiledVariant(kernel, params)?.name).toBeDefined();
});
