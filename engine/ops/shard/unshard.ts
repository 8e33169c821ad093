import type { Kernel } from '../kernel.ts';
import { heldSpans, walkShardThreads, walkShardWgsl } from './locate.ts';

/**
 * Puts elements begin … begin + count − 1 of one rank's shard, found at source[sourceOffset], at their places in the full
 * unit. Padding is not written anywhere.
 */
export const unshard: Kernel = {
  name: 'unshard',
  operands: [
    { name: 'table', dtype: 'u32', access: 'read' },
    { name: 'source', dtype: 'f32', access: 'read' },
    { name: 'target', dtype: 'f32', access: 'read_write' },
  ],
  params: [
    { name: 'segments', type: 'u32' },
    { name: 'begin', type: 'u32' },
    { name: 'count', type: 'u32' },
    { name: 'rank', type: 'u32' },
    { name: 'sourceOffset', type: 'u32' },
  ],
  constants: [],
  threads: ({ count }) => walkShardThreads(count),
  cost: ({ count }) => ({ flops: 0, bytes: 8 * count }),
  run(views, { segments, begin, count, rank, sourceOffset }) {
    const [table, source, target] = views as [Uint32Array, Float32Array, Float32Array];
    for (const { at, length, fullIndex } of heldSpans(table, segments, begin, count, rank)) {
      target.set(source.subarray(sourceOffset + at, sourceOffset + at + length), fullIndex);
    }
  },
  wgsl: `${walkShardWgsl}
fn held(at: u32, place: u32, context: u32) { target_[place] = source[p.sourceOffset + at]; }
fn padding(at: u32, context: u32) {}
fn kernel(i: u32) { walkShard(i, p.rank, 0u); }
`,
};
