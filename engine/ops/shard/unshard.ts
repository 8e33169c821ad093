import type { Kernel } from '../kernel.ts';
import { ELEMENTS_PER_THREAD, stridedThreads, stridedWgsl } from '../strided.ts';
import { heldSpans, locateWgsl } from './locate.ts';

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
  threads: ({ count }) => stridedThreads(count),
  cost: ({ count }) => ({ flops: 0, bytes: 8 * count }),
  run(views, { segments, begin, count, rank, sourceOffset }) {
    const [table, source, target] = views as [Uint32Array, Float32Array, Float32Array];
    for (const { at, length, fullIndex } of heldSpans(table, segments, begin, count, rank)) {
      target.set(source.subarray(sourceOffset + at, sourceOffset + at + length), fullIndex);
    }
  },
  wgsl: `${stridedWgsl}${locateWgsl}
fn kernel(i: u32) {
  let first = strided(i);
  if (first >= p.count) { return; }
  var s = segmentOf(p.begin + first);
  for (var k = 0u; k < ${ELEMENTS_PER_THREAD}u; k++) {
    let at = first + k * STRIDE;
    if (at >= p.count) { break; }
    s = segmentFrom(s, p.begin + at);
    let place = placeOf(s, p.begin + at, p.rank);
    if (place != NOWHERE) { target_[place] = source[p.sourceOffset + at]; }
  }
}
`,
};
