import type { Kernel } from '../kernel.ts';
import { quadsTiled } from '../quads.ts';
import { elementwiseWgsl, stridedThreads } from '../strided.ts';
import { halfWgsl, unpackHalves } from './half.ts';

/** out = the first n of the halves in x. */
export const unpackHalf: Kernel = {
  name: 'unpack-half',
  operands: [
    { name: 'x', dtype: 'f16', access: 'read' },
    { name: 'out', dtype: 'f32', access: 'write' },
  ],
  params: [{ name: 'n', type: 'u32' }],
  constants: [],
  threads: ({ n }) => stridedThreads(n),
  cost: ({ n }) => ({ flops: n, bytes: 6 * n }),
  run(views, { n }) {
    const [x, out] = views as [Uint32Array, Float32Array];
    out.set(unpackHalves(x, n));
  },
  wgsl: elementwiseWgsl(
    'p.n',
    `${halfWgsl}
fn element(e: u32) { out[e] = ofHalf((x[e / 2u] >> (16u * (e & 1u))) & 0xffffu); }`,
  ),
  tiled: quadsTiled(
    ['x', 'out'],
    `${halfWgsl}
fn quad(q: u32) {
  let words = x[q];
  out[q] = vec4f(ofHalf(words.x & 0xffffu), ofHalf(words.x >> 16u), ofHalf(words.y & 0xffffu), ofHalf(words.y >> 16u));
}`,
  ),
};
