import { expect, test } from 'vitest';
import { hashAt, streamKey } from './hash.ts';
import { initNormal } from './init-normal.ts';
import { initUniform } from './init-uniform.ts';
import { normalQuantiles } from './quantiles.ts';

test('both kernels write what their parameters select, and nothing else', () => {
  for (const kernel of [initUniform, initNormal]) {
    const out = new Float32Array(9).fill(7);
    kernel.run([out, normalQuantiles()], { n: 4, offset: 3, first: 100, key: 5, bound: 0.5, deviation: 0.5 });
    expect(out.filter((v) => v === 7)).toHaveLength(5);
    const part = new Float32Array(2);
    kernel.run([part, normalQuantiles()], { n: 2, offset: 0, first: 101, key: 5, bound: 0.5, deviation: 0.5 });
    expect(part).toEqual(out.slice(4, 6));
  }
});

test('uniform values never reach the bound, and are odd multiples of bound × 2^-24', () => {
  const out = new Float32Array(5000);
  initUniform.run([out], { n: 5000, offset: 0, first: 2 ** 31, key: 17, bound: 1 });
  for (const value of out) expect(Math.abs(value * 2 ** 24) % 2).toBe(1);
  expect(Math.max(...out)).toBeLessThan(1);
});

test('the key of a block of 2^32 indices is all that tells it from the next', () => {
  const index = 3 * 2 ** 32 + 77;
  const out = new Float32Array(1);
  initUniform.run([out], { n: 1, offset: 0, first: 77, key: streamKey(9, 3), bound: 1 });
  expect(out[0]).toBe(((hashAt(9, index) >>> 8) * 2 + 1 - 2 ** 24) / 2 ** 24);
  expect(hashAt(9, index)).not.toBe(hashAt(9, 77));
});
