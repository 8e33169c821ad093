import { expect, test } from 'vitest';
import { embedding } from './embedding.ts';

test('a row of the weight, scaled, plus the row that all positions share', () => {
  const weight = Float32Array.of(1, 2, 3, 4, 5, 6);
  const out = new Float32Array(4);
  embedding.run([Uint32Array.of(2, 0), weight, Float32Array.of(0.5, -1), out], { R: 2, D: 2, scale: 2, T: 1 });
  expect(Array.from(out)).toEqual([10.5, 11, 2.5, 3]);
});

test('a row of the weight plus the row of its position, sequence after sequence', () => {
  const weight = Float32Array.of(10, 20);
  const out = new Float32Array(4);
  embedding.run([Uint32Array.of(1, 0, 0, 1), weight, Float32Array.of(1, 2, 99), out], { R: 4, D: 1, scale: 1, T: 2 });
  expect(Array.from(out)).toEqual([21, 12, 11, 22]);
});
