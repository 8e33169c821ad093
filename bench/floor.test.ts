import { expect, test } from 'vitest';
import { onTensorCores } from '../engine/ops/half/on-tensor-cores.ts';
import { matmulNT } from '../engine/ops/matmul/matmul.ts';
import type { Dispatch } from '../engine/schedule/schedule.ts';
import { dispatchFloorMs, floorMs, ratioTo, sightingLine } from './floor.ts';

const rates = { bytesPerSecond: 4e12, flopsPerSecond: 50e12, halfFlopsPerSecond: 500e12 };

test('a floor is the longer of arithmetic and bytes', () => {
  expect(floorMs({ flops: 50e9, bytes: 1e9 }, rates)).toBeCloseTo(1);
  expect(floorMs({ flops: 1e9, bytes: 4e9 }, rates)).toBeCloseTo(1);
});

test('products on tensor cores have their rate and the bytes of halves', () => {
  const n = 4096;
  const params = { M: n, N: n, K: n, aOffset: 0, lda: n, bOffset: 0, ldb: n, cOffset: 0, ldc: n, accumulate: 0 };
  const kernel = onTensorCores(matmulNT, ['a', 'b'], params)!;
  const dispatch = (bytes: number): Dispatch => ({
    ...{ kernel, params, tiled: true },
    operands: [bytes, bytes, 4 * n * n].map((each, tensor) => ({ tensor, offsetBytes: 0, bytes: each })),
  });
  const flops = 2 * n ** 3;
  expect(dispatchFloorMs(dispatch(2 * n * n), rates)).toBeCloseTo((1000 * flops) / 500e12);
  expect(dispatchFloorMs(dispatch(2 * n * n), { ...rates, halfFlopsPerSecond: null })).toBeCloseTo(
    (1000 * flops) / 50e12,
  );
  // a and b as halves, c as float32: 8 bytes an element in all.
  const slow = { ...rates, bytesPerSecond: 1e9 };
  expect(dispatchFloorMs(dispatch(2 * n * n), slow)).toBeCloseTo((1000 * 8 * n * n) / 1e9);
});

test('rates are told the highest first', () => {
  const sightings = [
    { how: 'copy', perSecond: 3.7e12 },
    { how: "torch's copy", perSecond: 3.9e12 },
  ];
  expect(sightingLine('memory', sightings, 'B/s')).toBe("  memory   3.90 TB/s by torch's copy (copy 3.70)");
  expect(sightingLine('memory', [{ how: 'copy', perSecond: 4.5e9 }], 'B/s')).toBe('  memory   4.50 GB/s by copy');
  expect(() => sightingLine('memory', [], 'B/s')).toThrow(RangeError);
});

test('a ratio without torch is empty', () => {
  expect([ratioTo(2, 1), ratioTo(null, 1)]).toEqual(['0.50', '']);
});
