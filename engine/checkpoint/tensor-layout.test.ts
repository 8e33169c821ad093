import { expect, test } from 'vitest';
import { seededRandom } from '../ops/kernel-case.ts';
import { elementCount } from './dtype.ts';
import { contiguousStride, gatherBlock, isContiguous, spanElements, stridedBlocks } from './tensor-layout.ts';

const random = seededRandom(3);
const upTo = (most: number) => Math.floor(random() * (most + 1));

/** The definition: every index of the view in row-major order. */
function elementsOf(storage: Uint8Array, shape: readonly number[], stride: readonly number[]): number[] {
  let places = [0];
  for (const [dim, size] of shape.entries())
    places = places.flatMap((place) => Array.from({ length: size }, (_, i) => place + i * stride[dim]));
  return places.map((place) => storage[place]);
}

test('blocks of any span, put together, are the view', () => {
  for (let time = 0; time < 500; time++) {
    const shape = Array.from({ length: upTo(4) }, () => upTo(5));
    const stride = shape.map(() => upTo(30));
    const span = spanElements(shape, stride);
    const storage = Uint8Array.from({ length: span }, () => upTo(255));
    const out = new Uint8Array(elementCount(shape));
    const maxSpan = 1 + upTo(40);
    for (const block of stridedBlocks(shape, stride, maxSpan)) {
      const length = spanElements(block.shape, stride);
      expect(length).toBeLessThanOrEqual(maxSpan);
      expect(block.from + length).toBeLessThanOrEqual(span);
      gatherBlock(storage.subarray(block.from, block.from + length), block, stride, out, contiguousStride(shape), 1);
    }
    expect([...out], `[${shape}] by [${stride}] within ${maxSpan}`).toEqual(elementsOf(storage, shape, stride));
  }
});

test('a transposed matrix is read in blocks of its rows, a contiguous tensor is one', () => {
  const blocks = [...stridedBlocks([3, 8], [1, 3], 12)];
  expect(blocks.map(({ shape, from, to }) => [shape, from, to])).toEqual([
    [[3, 4], 0, 0],
    [[3, 4], 12, 4],
  ]);
  expect([...stridedBlocks([4, 6], [6, 1], 24)]).toHaveLength(1);
  expect(isContiguous([4, 6], [6, 1])).toBe(true);
});
