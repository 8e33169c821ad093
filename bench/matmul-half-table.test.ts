import { expect, test } from 'vitest';
import { halfHeader, halfLine } from './matmul-half-table.ts';

const row = { name: 'nt', variant: 'v *', flops: 1e9, floorMs: 0.002, f32Ms: 0.01, f16Ms: 0.005, torchMs: 0.002 };

test('results in halves are compared with torch, whose results are halves', () => {
  const cells = halfLine({ ...row, words: 'error 1' }).split(/\s\s+/);
  expect(cells).toEqual(['nt', 'v *', '10', '100.0', '5', '200.0', '40 %', '2', '500.0', '2.50', 'error 1']);
});

test('what was not measured is left empty, and columns stay under their names', () => {
  const bare = halfLine({ ...row, f16Ms: null, torchMs: null, words: '' });
  expect(bare.trim().split(/\s\s+/)).toEqual(['nt', 'v *', '10', '100.0']);
  expect(bare.trimEnd().endsWith('100.0')).toBe(true);
  expect(halfHeader().indexOf('TFLOP/s') + 7).toBe(bare.indexOf('100.0') + 5);
});
