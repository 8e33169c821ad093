import { describe, expect, test } from 'vitest';
import type { TensorContent } from './checkpoint-content.ts';
import type { DType } from './dtype.ts';
import { tensorStatistics } from './tensor-statistics.ts';

/** A tensor whose bytes come in pieces of three elements, each at an odd place in its buffer. */
function tensor(dtype: DType, values: ArrayBufferView<ArrayBuffer> & { readonly length: number }): TensorContent {
  const bytes = new Uint8Array(values.buffer);
  const elementBytes = values.byteLength / values.length;
  return {
    kind: 'tensor-content',
    dtype,
    shape: [values.length],
    async *read() {
      for (let at = 0; at < bytes.length; at += 3 * elementBytes) {
        const piece = bytes.subarray(at, at + 3 * elementBytes);
        const odd = new Uint8Array(piece.length + 1);
        odd.set(piece, 1);
        yield odd.subarray(1);
      }
    },
  };
}

describe('statistics of a tensor', () => {
  test('smallest, largest, mean, and how many lie where', async () => {
    const values = Float32Array.from([0, 1, 2, 3, 4, 5, 6, 7, 7.5, 8]);
    expect(await tensorStatistics(tensor('float32', values), 4)).toEqual({
      elements: 10,
      nan: 0,
      positiveInfinity: 0,
      negativeInfinity: 0,
      min: 0,
      max: 8,
      mean: 4.35,
      histogram: [2, 2, 2, 4],
    });
  });

  test('what is not finite is counted apart and spoils nothing', async () => {
    const values = Float64Array.from([NaN, Infinity, -Infinity, -Infinity, 1, 3]);
    expect(await tensorStatistics(tensor('float64', values), 2)).toMatchObject({
      nan: 1,
      positiveInfinity: 1,
      negativeInfinity: 2,
      min: 1,
      max: 3,
      mean: 2,
      histogram: [1, 1],
    });
    expect(await tensorStatistics(tensor('float64', Float64Array.of(NaN)))).toMatchObject({ min: null, histogram: [] });
  });

  test('one value; the whole width of float64; no element', async () => {
    expect((await tensorStatistics(tensor('float32', Float32Array.of(2, 2, 2)), 3)).histogram).toEqual([3, 0, 0]);
    const wide = Float64Array.of(-Number.MAX_VALUE, Number.MAX_VALUE);
    expect((await tensorStatistics(tensor('float64', wide), 2)).histogram).toEqual([1, 1]);
    expect(await tensorStatistics(tensor('float32', new Float32Array(0)))).toMatchObject({ elements: 0, mean: null });
  });

  test.each([
    ['int64', BigInt64Array.of(-3n, 1n)],
    ['uint64', BigUint64Array.of(0n, 2n)],
    ['int32', Int32Array.of(-3, 1)],
    ['uint32', Uint32Array.of(0, 2)],
    ['int16', Int16Array.of(-3, 1)],
    ['uint16', Uint16Array.of(0, 2)],
    ['int8', Int8Array.of(-3, 1)],
    ['uint8', Uint8Array.of(0, 2)],
    ['bool', Uint8Array.of(0, 1)],
    ['bfloat16', Uint16Array.of(0x3f80, 0xc000)],
    ['float16', Uint16Array.of(0x3c00, 0xc000)],
  ] as const)('of %s', async (dtype, values) => {
    const { min, max } = await tensorStatistics(tensor(dtype, values));
    expect(max! - min!).toBe(dtype === 'bool' ? 1 : dtype.startsWith('u') ? 2 : dtype.includes('float') ? 3 : 4);
  });

  test('complex numbers and 8-bit floats are refused', async () => {
    await expect(tensorStatistics(tensor('complex64', new Float64Array(1)))).rejects.toMatchObject({
      code: 'bad-data',
    });
    await expect(tensorStatistics(tensor('float8_e5m2', new Uint8Array(1)))).rejects.toThrow(/float8_e5m2/);
  });
});
