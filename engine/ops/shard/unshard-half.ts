import { halfBits, halfWgsl } from '../half/half.ts';
import type { Kernel } from '../kernel.ts';
import { stridedWgsl } from '../strided.ts';
import { heldSpans, SHARD_ELEMENTS_PER_THREAD, spanAtWgsl, walkShardThreads } from './locate.ts';

/**
 * `unshard` into a unit of halves. A rank's rows may begin or end in the middle of a word; the other half of that word is
 * left as it is, so ranks are placed one dispatch after another.
 */
export const unshardHalf: Kernel = {
  name: 'unshard-half',
  operands: [
    { name: 'table', dtype: 'u32', access: 'read' },
    { name: 'source', dtype: 'f32', access: 'read' },
    { name: 'target', dtype: 'f16', access: 'read_write' },
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
  cost: ({ count }) => ({ flops: count, bytes: 6 * count }),
  run(views, { segments, begin, count, rank, sourceOffset }) {
    const [table, source, target] = views as [Uint32Array, Float32Array, Uint32Array];
    const halves = new Uint16Array(target.buffer, target.byteOffset, 2 * target.length);
    for (const { at, length, fullIndex } of heldSpans(table, segments, begin, count, rank))
      for (let i = 0; i < length; i++) halves[fullIndex + i] = halfBits(source[sourceOffset + at + i]);
  },
  // Whoever has the low half of a word writes all of it; a run that begins with a high half writes that alone.
  wgsl: `${stridedWgsl(SHARD_ELEMENTS_PER_THREAD)}${spanAtWgsl}${halfWgsl}
fn kernel(i: u32) {
  let last = p.begin + min(p.count, stridedEnd(i));
  var e = p.begin + stridedFirst(i);
  while (e < last) {
    let span = spanAt(e, p.rank);
    for (; e < min(last, span.heldEnd); e += STRIDE) {
      let at = p.sourceOffset + e - p.begin;
      let place = e + span.shift;
      let word = place / 2u;
      if (place % 2u == 0u) {
        var high = target_[word] & 0xffff0000u;
        if (e + 1u < span.heldEnd) { high = halfOf(source[at + 1u]) << 16u; }
        target_[word] = halfOf(source[at]) | high;
      } else if (e == span.first) {
        target_[word] = (target_[word] & 0xffffu) | (halfOf(source[at]) << 16u);
      }
    }
    for (; e < min(last, span.end); e += STRIDE) {}
  }
}
`,
};
