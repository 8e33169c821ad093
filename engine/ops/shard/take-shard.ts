import type { Kernel } from '../kernel.ts';
import { heldSpans, walkShardThreads, walkShardWgsl } from './locate.ts';

/** Takes elements begin … begin + count − 1 of one rank's shard out of the full unit, zero where these are padding. */
export const takeShard: Kernel = {
  name: 'take-shard',
  operands: [
    { name: 'table', dtype: 'u32', access: 'read' },
    { name: 'full', dtype: 'f32', access: 'read' },
    { name: 'shard', dtype: 'f32', access: 'write' },
  ],
  params: [
    { name: 'segments', type: 'u32' },
    { name: 'begin', type: 'u32' },
    { name: 'count', type: 'u32' },
    { name: 'rank', type: 'u32' },
  ],
  constants: [],
  threads: ({ count }) => walkShardThreads(count),
  cost: ({ count }) => ({ flops: 0, bytes: 8 * count }),
  run(views, { segments, begin, count, rank }) {
    const [table, full, shard] = views as [Uint32Array, Float32Array, Float32Array];
    shard.fill(0, 0, count);
    for (const { at, length, fullIndex } of heldSpans(table, segments, begin, count, rank))
      shard.set(full.subarray(fullIndex, fullIndex + length), at);
  },
  wgsl: `${walkShardWgsl}
fn held(at: u32, place: u32, context: u32) { shard[at] = full[place]; }
fn padding(at: u32, context: u32) { shard[at] = 0.0; }
fn kernel(i: u32) { walkShard(i, p.rank, 0u); }
`,
};
