import type { Kernel } from '../kernel.ts';
import { heldSpans, walkShardThreads, walkShardWgsl } from './locate.ts';

/**
 * Cuts the full unit into what each other rank is to receive: slot after slot, in the order of the ranks without `self`,
 * elements begin … begin + count − 1 of that rank's shard, zero where these are padding. `ranks` is the number of slots.
 */
export const shardPack: Kernel = {
  name: 'shard-pack',
  operands: [
    { name: 'table', dtype: 'u32', access: 'read' },
    { name: 'full', dtype: 'f32', access: 'read' },
    { name: 'out', dtype: 'f32', access: 'write' },
  ],
  params: [
    { name: 'segments', type: 'u32' },
    { name: 'begin', type: 'u32' },
    { name: 'count', type: 'u32' },
    { name: 'self', type: 'u32' },
    { name: 'ranks', type: 'u32' },
  ],
  constants: [],
  threads: ({ count, ranks }) => ranks * walkShardThreads(count),
  cost: ({ count, ranks }) => ({ flops: 0, bytes: 8 * count * ranks }),
  run(views, { segments, begin, count, self, ranks }) {
    const [table, full, out] = views as [Uint32Array, Float32Array, Float32Array];
    for (let slot = 0; slot < ranks; slot++) {
      const piece = out.subarray(slot * count, (slot + 1) * count);
      piece.fill(0);
      for (const { at, length, fullIndex } of heldSpans(table, segments, begin, count, slot < self ? slot : slot + 1)) {
        piece.set(full.subarray(fullIndex, fullIndex + length), at);
      }
    }
  },
  // The context of an element is where its rank's slot begins.
  wgsl: `${walkShardWgsl}
fn held(at: u32, place: u32, slotStart: u32) { out[slotStart + at] = full[place]; }
fn padding(at: u32, slotStart: u32) { out[slotStart + at] = 0.0; }
fn kernel(i: u32) {
  let slotThreads = p.threads / p.ranks;
  let slot = i / slotThreads;
  walkShard(i - slot * slotThreads, select(slot + 1u, slot, slot < p.self_), slot * p.count);
}
`,
};
