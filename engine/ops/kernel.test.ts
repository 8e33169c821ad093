import { expect, test } from 'vitest';
import { pipelineKey, softwareVariant, tiledVariant, variantClass } from './kernel.ts';
import { matmulNT, matmulNTBias } from './matmul/matmul.ts';
import { rowSquareSums } from './norm/row-square-sums.ts';
import { adam } from './optimizer/adam.ts';
import { kernels } from './registry.ts';

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

test('a software adapter runs a variant without barriers, chosen by name where a GPU has another', () => {
  const rows = { segments: 1, totalRows: 100, rank: 0 };
  const software = softwareVariant(rowSquareSums, rows)!;
  expect(software.wgsl).not.toContain('workgroupBarrier');
  expect(tiledVariant(rowSquareSums, rows)).not.toBe(software);
  expect(tiledVariant(rowSquareSums, rows, software.name)).toBe(software);
  expect(softwareVariant(adam, { n: 64, offset: 0 })).toBe(adam.tiled);
  expect(softwareVariant(adam, { n: 63, offset: 0 })).toBeUndefined();
  expect(softwareVariant(matmulNT, params)).toBeUndefined();
});

test('no variant that says it is without barriers has one, or workgroup memory', () => {
  for (const { name, tiled } of kernels.values())
    for (const variant of tiled ? [tiled, ...(tiled.special ?? [])] : [])
      if (variant.barrierFree) expect(variant.wgsl, name).not.toMatch(/workgroupBarrier|var<workgroup>/);
});
