import type { Kernel } from '../kernel.ts';
import { ELEMENTS_PER_THREAD, stridedThreads, stridedWgsl } from '../strided.ts';
import { heldSpans, locateWgsl } from './locate.ts';

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
  threads: ({ count, ranks }) => ranks * stridedThreads(count),
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
  wgsl: `${stridedWgsl}${locateWgsl}
fn kernel(i: u32) {
  let slotThreads = p.threads / p.ranks;
  let slot = i / slotThreads;
  let rank = select(slot + 1u, slot, slot < p.self_);
  let first = strided(i % slotThreads);
  if (first >= p.count) { return; }
  var s = segmentOf(p.begin + first);
  for (var k = 0u; k < ${ELEMENTS_PER_THREAD}u; k++) {
    let at = first + k * STRIDE;
    if (at >= p.count) { break; }
    s = segmentFrom(s, p.begin + at);
    let place = placeOf(s, p.begin + at, rank);
    var value = 0.0;
    if (place != NOWHERE) { value = full[place]; }
    out[slot * p.count + at] = value;
  }
}
`,
};
