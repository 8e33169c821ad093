import { expect, test } from 'vitest';
import { guideLine } from './matmul-guide.ts';
import { GUIDE_SHAPES, leastCost, leastGradientsCost, productParams, shapeName, shrunk } from './matmul-shapes.ts';

test('a floor has the weight once, or the gradient of the weight', () => {
  const weight = 4 * 4096 * 1024;
  const flops = 2 * 35 * 4096 * 1024;
  expect(leastCost(['nt', 35, 4096, 1024])).toEqual({ flops, bytes: weight });
  expect(leastCost(['nn', 35, 1024, 4096])).toEqual({ flops, bytes: weight });
  expect(leastCost(['tn', 4096, 1024, 35])).toEqual({ flops, bytes: weight });
  expect(leastGradientsCost(35, 4096, 1024)).toEqual({ flops: 2 * flops, bytes: 2 * weight });
});

test('rows of a and c begin at whole vec4s', () => {
  expect(productParams(['nn', 35, 1024, 33_278])).toMatchObject({ lda: 33_280, ldb: 1024, ldc: 1024 });
  expect(productParams(['nt', 35, 33_278, 1024])).toMatchObject({ lda: 1024, ldb: 1024, ldc: 33_280 });
  expect(productParams(['tn', 4096, 1024, 35])).toMatchObject({ lda: 4096, ldb: 1024, ldc: 1024 });
});

test('fourteen shapes of a step, and what a machine without a GPU has of them', () => {
  expect(new Set(GUIDE_SHAPES.map(shapeName)).size).toBe(14);
  expect(GUIDE_SHAPES.every(([, ...extents]) => extents.includes(35))).toBe(true);
  expect(shrunk(['nt', 35, 33_278, 1024])).toEqual(['nt', 35, 2078, 64]);
});

test('a row has medians, the part that the floor is, and torch where it is', () => {
  const row = (theirs: number[]) => guideLine('nt 35x4x4', ['a', 'b'], [0.02, 0.01, 0.5], 0.005, theirs).split(/\s\s+/);
  expect(row([0.04, 0.04])).toEqual(['nt 35x4x4', 'a, b', '20.0', '5.0', '25 %', '40.0', '0.50']);
  expect(row([])).toEqual(['nt 35x4x4', 'a, b', '20.0', '5.0', '25 %']);
});
