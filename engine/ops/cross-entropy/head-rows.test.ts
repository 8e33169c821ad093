import { expect, test } from 'vitest';
import { headRows } from './head-rows.ts';

test.each([
  ['the guide', 35, 33_280, 35],
  ['64 MiB', 2048, 8192, 2048],
  ['8 x 512 tokens of the guide', 4096, 33_280, 512],
  ['GPT-2, 8 x 1024', 8192, 50_260, 512],
  ['a vocabulary of which 512 rows are more', 4096, 128_256, 512],
  ['a small one: pieces of some 64 MiB', 16_384, 2000, 8192],
  ['few rows of a large one', 300, 128_256, 300],
  ['nearly equal pieces', 1100, 33_280, 384],
  ['a row is left', 4097, 33_280, 512],
])('%s: %i rows of %i floats are made %i at a time', (_, R, stride, rows) => {
  expect(headRows(R, stride)).toBe(rows);
});

test('whole tiles, and no more rows than there are', () => {
  for (let R = 1; R < 6000; R += 97)
    for (const stride of [4, 3000, 33_280, 250_000]) {
      const rows = headRows(R, stride);
      expect(rows).toBeLessThanOrEqual(R);
      if (rows < R) expect(rows % 128).toBe(0);
      expect(4 * rows * stride).toBeLessThanOrEqual(Math.max(1.1 * 64 * 2 ** 20, 4 * 512 * stride));
    }
});
