import { expect, test } from 'vitest';
import { swapBytes, toFloat32 } from './dtype.ts';

const bytesOf = (values: ArrayBufferView<ArrayBuffer>): Uint8Array<ArrayBuffer> =>
  new Uint8Array(values.buffer, values.byteOffset, values.byteLength);

test('all 65,536 halves convert as IEEE 754 says', () => {
  const halves = Uint16Array.from({ length: 65536 }, (_, i) => i);
  const floats = toFloat32('float16', bytesOf(halves), 'test');
  const expected = Float32Array.from(halves, (half) => {
    const sign = half & 0x8000 ? -1 : 1;
    const exponent = (half >> 10) & 31;
    const fraction = half & 1023;
    if (exponent === 31) return fraction === 0 ? sign * Number.POSITIVE_INFINITY : Number.NaN;
    return exponent === 0 ? sign * fraction * 2 ** -24 : sign * (1024 + fraction) * 2 ** (exponent - 25);
  });
  const wrong = [...halves].filter((half) => !Object.is(floats[half], expected[half]));
  expect(wrong).toEqual([]);
});

test('bfloat16 is the upper half of float32; float64 rounds; float32 is not copied', () => {
  const tops = Uint16Array.of(0x3f80, 0xc2f7, 0x8000, 0x7f80, 0x0001);
  const expected = new Float32Array(Uint32Array.from(tops, (top) => top << 16).buffer);
  expect(toFloat32('bfloat16', bytesOf(tops), 'test')).toEqual(expected);
  expect(toFloat32('float64', bytesOf(Float64Array.of(0.1, -2)), 'test')).toEqual(Float32Array.of(0.1, -2));
  const floats = Float32Array.of(1, 2);
  expect(toFloat32('float32', bytesOf(floats), 'test').buffer).toBe(floats.buffer);
});

test('an integer tensor is no weight, and the message names it', () => {
  expect(() => toFloat32('int64', new Uint8Array(8), 'a.pt: steps')).toThrow(/a\.pt: steps is int64/);
});

test('swapping goes by words: a complex number is two', () => {
  const bytes = Uint8Array.of(1, 2, 3, 4, 5, 6, 7, 8);
  swapBytes(bytes, 'complex64');
  expect([...bytes]).toEqual([4, 3, 2, 1, 8, 7, 6, 5]);
  swapBytes(bytes, 'int64');
  expect([...bytes]).toEqual([5, 6, 7, 8, 1, 2, 3, 4]);
});
