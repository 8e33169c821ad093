import { expect, test } from 'vitest';
import { parallelCopy } from './parallel-copy.ts';

test.each([0, 5, 2 ** 18, 2 ** 21, 5 * 2 ** 20 + 37])(
  '%i bytes arrive, and nothing beside them is touched',
  async (bytes) => {
    const source = Uint8Array.from({ length: bytes + 9 }, (_, i) => (i * 31) % 251);
    const target = new Uint8Array(bytes + 20).fill(255);
    await parallelCopy(target.subarray(7, 7 + bytes), source.subarray(3, 3 + bytes));
    expect(target.subarray(0, 7).every((byte) => byte === 255)).toBe(true);
    expect(target.subarray(7 + bytes).every((byte) => byte === 255)).toBe(true);
    expect(Buffer.compare(target.subarray(7, 7 + bytes), source.subarray(3, 3 + bytes))).toBe(0);
  },
);

test('lengths that differ are refused', async () => {
  await expect(parallelCopy(new Uint8Array(4), new Uint8Array(5))).rejects.toThrow(RangeError);
});
