import { expect, test } from 'vitest';
import { copy } from './copy.ts';

test('copies n elements, no more', () => {
  const out = new Float32Array(3).fill(9);
  copy.run([new Float32Array([1, 2, 3]), out], { n: 2 });
  expect(Array.from(out)).toEqual([1, 2, 9]);
});
