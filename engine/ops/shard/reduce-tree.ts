import type { Kernel } from '../kernel.ts';
import { heldSpans, walkShardThreads, walkShardWgsl } from './locate.ts';
import { treeOrder } from './tree-order.ts';

/** Ranks that the kernel can add. */
export const REDUCE_TREE_MAX_WORLD = 8;

/**
 * Adds what all ranks hold of elements begin … begin + count − 1 of rank `self`'s shard, in the tree of `treeOrder`, each
 * addition in float32; then times `scale`, to out[outOffset …]. This rank's own values come from its full unit (0 for
 * padding), those of the others from `received`: slot after slot in the order of the ranks without `self`.
 */
export const reduceTree: Kernel = {
  name: 'reduce-tree',
  operands: [
    { name: 'table', dtype: 'u32', access: 'read' },
    { name: 'full', dtype: 'f32', access: 'read' },
    { name: 'received', dtype: 'f32', access: 'read' },
    { name: 'out', dtype: 'f32', access: 'read_write' },
  ],
  params: [
    { name: 'segments', type: 'u32' },
    { name: 'begin', type: 'u32' },
    { name: 'count', type: 'u32' },
    { name: 'self', type: 'u32' },
    { name: 'world', type: 'u32' },
    { name: 'outOffset', type: 'u32' },
    { name: 'scale', type: 'f32' },
    { name: 'accumulate', type: 'u32' },
  ],
  constants: ['world'],
  threads({ count, world }) {
    if (world > REDUCE_TREE_MAX_WORLD) {
      throw new RangeError(`reduce-tree adds at most ${REDUCE_TREE_MAX_WORLD} ranks, not ${world}`);
    }
    return walkShardThreads(count);
  },
  cost: ({ count, world, accumulate }) => ({
    flops: count * (world + accumulate),
    bytes: 4 * count * (world + 1 + accumulate),
  }),
  run(views, { segments, begin, count, self, world, outOffset, scale, accumulate }) {
    const [table, full, received, out] = views as [Uint32Array, Float32Array, Float32Array, Float32Array];
    const own = new Float32Array(count);
    for (const { at, length, fullIndex } of heldSpans(table, segments, begin, count, self)) {
      own.set(full.subarray(fullIndex, fullIndex + length), at);
    }
    const sums: Float32Array[] = [];
    for (let rank = 0; rank < world; rank++) {
      const slot = rank < self ? rank : rank - 1;
      sums.push(rank === self ? own : received.slice(slot * count, (slot + 1) * count));
    }
    for (const [into, from] of treeOrder(world)) {
      const a = sums[into];
      const b = sums[from];
      for (let i = 0; i < count; i++) a[i] += b[i];
    }
    const factor = Math.fround(scale);
    const sum = sums[0];
    for (let i = 0; i < count; i++) {
      const mean = Math.fround(sum[i] * factor);
      out[outOffset + i] = accumulate ? out[outOffset + i] + mean : mean;
    }
  },
  // plus(a, b, r): a + b, where b is a sum that begins at rank r; just a where there is no such rank.
  wgsl: `${walkShardWgsl}
fn valueOf(rank: u32, at: u32, own: f32) -> f32 {
  if (rank >= world) { return 0.0; }
  if (rank == p.self_) { return own; }
  return received[select(rank - 1u, rank, rank < p.self_) * p.count + at];
}
fn plus(a: f32, b: f32, r: u32) -> f32 {
  if (r < world) { return a + b; }
  return a;
}
fn reduce(at: u32, own: f32) {
  let s01 = plus(valueOf(0u, at, own), valueOf(1u, at, own), 1u);
  let s23 = plus(valueOf(2u, at, own), valueOf(3u, at, own), 3u);
  let s45 = plus(valueOf(4u, at, own), valueOf(5u, at, own), 5u);
  let s67 = plus(valueOf(6u, at, own), valueOf(7u, at, own), 7u);
  let mean = plus(plus(s01, s23, 2u), plus(s45, s67, 6u), 4u) * p.scale;
  if (p.accumulate == 1u) { out[p.outOffset + at] += mean; } else { out[p.outOffset + at] = mean; }
}
fn held(at: u32, place: u32, context: u32) { reduce(at, full[place]); }
fn padding(at: u32, context: u32) { reduce(at, 0.0); }
fn kernel(i: u32) { walkShard(i, p.self_, 0u); }
`,
};
