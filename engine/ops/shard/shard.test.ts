import { describe, expect, test } from 'vitest';
import { seededRandom } from '../kernel-case.ts';
import { shardLayout, shardTable } from './layout.ts';
import { reduceTree } from './reduce-tree.ts';
import { unevenParameters } from './shard.cases.ts';
import { shardPack } from './shard-pack.ts';
import { treeOrder } from './tree-order.ts';
import { unshard } from './unshard.ts';

const random = seededRandom(11);
const uniform = (n: number) => Float32Array.from({ length: n }, () => random() * 2 - 1);
const f = Math.fround;

/** A rank's shard of a full unit, element by element from the definition. */
function shardOf(full: Float32Array, world: number, rank: number): Float32Array<ArrayBuffer> {
  const { segments, shardElements } = shardLayout(unevenParameters, world);
  const shard = new Float32Array(shardElements);
  for (const s of segments) {
    for (let k = 0; k < s.chunkRows; k++) {
      const row = rank * s.chunkRows + k;
      for (let c = 0; c < s.rowLength && row < s.rows; c++) {
        shard[s.shardOffset + k * s.rowLength + c] = full[s.fullOffset + row * s.rowLength + c];
      }
    }
  }
  return shard;
}

describe.each([1, 2, 3, 4, 5, 8])('over %i ranks', (world) => {
  const layout = shardLayout(unevenParameters, world);
  const table = shardTable(layout);
  const segments = layout.segments.length;
  const { shardElements, fullElements } = layout;
  const full = uniform(fullElements);
  const shards = Array.from({ length: world }, (_, rank) => shardOf(full, world, rank));
  const windows = [
    { begin: 0, count: 61 },
    { begin: 61, count: shardElements - 61 },
  ];

  test('unshard, window by window, puts every element back and touches nothing else', () => {
    const target = new Float32Array(fullElements).fill(-7);
    shards.forEach((shard, rank) => {
      for (const { begin, count } of windows) {
        unshard.run([table, shard, target], { segments, begin, count, rank, sourceOffset: begin });
      }
    });
    const isData = new Uint8Array(fullElements);
    for (const s of layout.segments) isData.fill(1, s.fullOffset, s.fullOffset + s.rows * s.rowLength);
    target.forEach((value, i) => {
      expect(value).toBe(isData[i] ? full[i] : -7);
    });
  });

  test('shard-pack cuts the shard of every other rank, in the order of the ranks', () => {
    const self = world - 1;
    for (const { begin, count } of windows) {
      const out = uniform((world - 1) * count);
      shardPack.run([table, full, out], { segments, begin, count, self, ranks: world - 1 });
      const expected = shards.filter((_, rank) => rank !== self).map((shard) => shard.subarray(begin, begin + count));
      expected.forEach((piece, slot) => {
        expect(out.subarray(slot * count, (slot + 1) * count)).toEqual(piece);
      });
    }
  });

  test('reduce-tree adds the ranks in the tree, its own from the full unit, and scales once', () => {
    const self = Math.floor(world / 2);
    const gradients = Array.from({ length: world }, () => uniform(fullElements));
    for (const { begin, count } of windows) {
      const pieces = gradients.map((g) => shardOf(g, world, self).subarray(begin, begin + count));
      const received = Float32Array.from(pieces.filter((_, rank) => rank !== self).flatMap((piece) => [...piece]));
      const before = uniform(count + 2);
      const out = before.slice();
      const params = { segments, begin, count, self, world, outOffset: 2, scale: 1 / world, accumulate: 1 };
      reduceTree.run([table, gradients[self], received, out], params);
      for (let i = 0; i < count; i++) {
        const mean = f(treeSumOf(pieces.map((piece) => piece[i])) * f(1 / world));
        expect(out[2 + i]).toBe(f(before[2 + i] + mean));
      }
      expect(out.subarray(0, 2)).toEqual(before.subarray(0, 2));
    }
  });
});

/** The tree by recursion: the left half is the largest power of two below the number of values. */
function treeSumOf(values: readonly number[]): number {
  if (values.length === 1) return values[0];
  const half = 2 ** Math.ceil(Math.log2(values.length) - 1);
  return f(treeSumOf(values.slice(0, half)) + treeSumOf(values.slice(half)));
}

test('the order is written out for seven ranks', () => {
  const terms = ['0', '1', '2', '3', '4', '5', '6'];
  for (const [into, from] of treeOrder(7)) terms[into] = `(${terms[into]}+${terms[from]})`;
  expect(terms[0]).toBe('(((0+1)+(2+3))+((4+5)+6))');
  expect(treeOrder(1)).toEqual([]);
  expect(() => treeOrder(0)).toThrow(RangeError);
});

test('more ranks than the kernel adds are refused', () => {
  expect(() => reduceTree.threads({ count: 1, world: 9 })).toThrow('at most 8 ranks');
});
