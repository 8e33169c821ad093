import { expect, test } from 'vitest';
import { add } from './add.ts';

test('adds n elements in float32', () => {
  const out = new Float32Array([1, 2 ** 24, 3]);
  add.run([out, new Float32Array([0.25, 1, 9])], { n: 2 });
  expect(Array.from(out)).toEqual([1.25, 2 ** 24, 3]);
});
