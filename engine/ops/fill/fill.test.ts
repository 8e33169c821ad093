import { expect, test } from 'vitest';
import { fill } from './fill.ts';

test('fills what the parameters select, and nothing else', () => {
  const out = new Float32Array([1, 2, 3, 4, 5]);
  fill.run([out], { n: 2, offset: 1, value: 0.5 });
  expect(Array.from(out)).toEqual([1, 0.5, 0.5, 4, 5]);
});
