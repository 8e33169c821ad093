import { expect, test } from 'vitest';
import { pipelineKey, tiledVariant, variantClass } from './kernel.ts';
import { matmulNT, matmulNTBias } from './matmul/matmul.ts';

const strides = { aOffset: 0, lda: 128, bOffset: 0, ldb: 128, cOffset: 0, ldc: 4096, accumulate: 0 };
const params = { M: 35, N: 4096, K: 128, ...strides, biasOffset: 0, relu: 0 };

test('a choice runs where it fits; without one, or with one of another version, it is the first that fits', () => {
  const fitting = matmulNTBias.tiled!.special!.filter((variant) => variant.fits(params));
  expect(fitting.length).toBeGreaterThan(1);
  expect(tiledVariant(matmulNTBias, params)).toBe(fitting[0]);
  expect(tiledVariant(matmulNTBias, params, fitting[1].name)).toBe(fitting[1]);
  expect(tiledVariant(matmulNTBias, params, 'of another version')).toBe(fitting[0]);
  expect(pipelineKey(matmulNTBias, params, true, fitting[1].name)).toContain(fitting[1].name);
});

test('products with and without a bias are of one class; halves are of another', () => {
  expect(variantClass(matmulNT, params)).toBe(variantClass(matmulNTBias, params));
  expect(variantClass({ ...matmulNT, halves: ['a'] }, params)).not.toBe(variantClass(matmulNT, params));
});

test('what needs too large a grid for every tiled variant runs plain, under a key of its own', () => {
  const wide = { ...params, M: 1, N: 2 ** 22 * 128, K: 4, lda: 4, ldb: 4, ldc: 2 ** 29 };
  expect(tiledVariant(matmulNT, wide)).toBeUndefined();
  expect(pipelineKey(matmulNT, wide, true)).toBe(pipelineKey(matmulNT, wide, false));
  expect(pipelineKey(matmulNT, params, true)).not.toBe(pipelineKey(matmulNT, params, false));
});
