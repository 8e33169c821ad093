import { halfWgsl, halfWords, packHalves } from '../half/half.ts';
import type { Kernel } from '../kernel.ts';
import { stridedWgsl } from '../strided.ts';
import { heldSpans, SHARD_ELEMENTS_PER_THREAD, spanAtWgsl, walkShardThreads } from './locate.ts';

/** `shardPack` with slots of halves. `begin` and `count` are even, and segments begin on even elements. */
export const shardPackHalf: Kernel = {
  name: 'shard-pack-half',
  operands: [
    { name: 'table', dtype: 'u32', access: 'read' },
    { name: 'full', dtype: 'f32', access: 'read' },
    { name: 'out', dtype: 'f16', access: 'write' },
  ],
  params: [
    { name: 'segments', type: 'u32' },
    { name: 'begin', type: 'u32' },
    { name: 'count', type: 'u32' },
    { name: 'self', type: 'u32' },
    { name: 'ranks', type: 'u32' },
  ],
  constants: [],
  threads: ({ count, ranks }) => ranks * walkShardThreads(halfWords(count)),
  cost: ({ count, ranks }) => ({ flops: count * ranks, bytes: 6 * count * ranks }),
  run(views, { segments, begin, count, self, ranks }) {
    const [table, full, out] = views as [Uint32Array, Float32Array, Uint32Array];
    for (let slot = 0; slot < ranks; slot++) {
      const piece = new Float32Array(count);
      for (const { at, length, fullIndex } of heldSpans(table, segments, begin, count, slot < self ? slot : slot + 1))
        piece.set(full.subarray(fullIndex, fullIndex + length), at);
      out.set(packHalves(piece), slot * halfWords(count));
    }
  },
  wgsl: `${stridedWgsl(SHARD_ELEMENTS_PER_THREAD)}${spanAtWgsl}${halfWgsl}
fn kernel(i: u32) {
  let slotThreads = p.threads / p.ranks;
  let slot = i / slotThreads;
  let thread = i - slot * slotThreads;
  let words = p.count / 2u;
  let last = min(words, stridedEnd(thread));
  var w = stridedFirst(thread);
  while (w < last) {
    let span = spanAt(p.begin + 2u * w, select(slot + 1u, slot, slot < p.self_));
    for (; w < last && p.begin + 2u * w < span.end; w += STRIDE) {
      let e = p.begin + 2u * w;
      var word = 0u;
      if (e < span.heldEnd) { word = halfOf(full[e + span.shift]); }
      if (e + 1u < span.heldEnd) { word |= halfOf(full[e + 1u + span.shift]) << 16u; }
      out[slot * words + w] = word;
    }
  }
}
`,
};
