import type { Kernel } from '../kernel.ts';
import { quadsTiled } from '../quads.ts';
import { elementwiseWgsl, stridedThreads } from '../strided.ts';
import { halfWgsl, halfWords, packHalves } from './half.ts';

/** out = the n numbers from x[xOffset], as halves. An odd last one is followed by 0. */
export const packHalf: Kernel = {
  name: 'pack-half',
  operands: [
    { name: 'x', dtype: 'f32', access: 'read' },
    { name: 'out', dtype: 'f16', access: 'write' },
  ],
  params: [
    { name: 'n', type: 'u32' },
    { name: 'xOffset', type: 'u32' },
  ],
  constants: [],
  threads: ({ n }) => stridedThreads(halfWords(n)),
  cost: ({ n }) => ({ flops: n, bytes: 6 * n }),
  run(views, { n, xOffset }) {
    const [x, out] = views as [Float32Array, Uint32Array];
    out.set(packHalves(x.subarray(xOffset, xOffset + n)));
  },
  wgsl: elementwiseWgsl(
    '(p.n + 1u) / 2u',
    `${halfWgsl}
fn element(w: u32) {
  var word = halfOf(x[p.xOffset + 2u * w]);
  if (2u * w + 1u < p.n) { word |= halfOf(x[p.xOffset + 2u * w + 1u]) << 16u; }
  out[w] = word;
}`,
  ),
  tiled: quadsTiled(
    ['x', 'out'],
    `${halfWgsl}
fn quad(q: u32) {
  let v = x[p.xOffset / 4u + q];
  out[q] = vec2u(halfOf(v.x) | (halfOf(v.y) << 16u), halfOf(v.z) | (halfOf(v.w) << 16u));
}`,
    ['xOffset'],
  ),
};
