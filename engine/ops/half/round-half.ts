import type { Kernel } from '../kernel.ts';
import { quadsTiled } from '../quads.ts';
import { elementwiseWgsl, stridedThreads } from '../strided.ts';
import { halfWgsl, roundToHalf } from './half.ts';

/** x = the half nearest to each of n numbers, in place: what a rank's gradients are worth to itself once they travel as halves. */
export const roundHalf: Kernel = {
  name: 'round-half',
  operands: [{ name: 'x', dtype: 'f32', access: 'read_write' }],
  params: [{ name: 'n', type: 'u32' }],
  constants: [],
  threads: ({ n }) => stridedThreads(n),
  cost: ({ n }) => ({ flops: n, bytes: 8 * n }),
  run(views, { n }) {
    const [x] = views as [Float32Array];
    for (let e = 0; e < n; e++) x[e] = roundToHalf(x[e]);
  },
  wgsl: elementwiseWgsl('p.n', `${halfWgsl}\nfn element(e: u32) { x[e] = ofHalf(halfOf(x[e])); }`),
  tiled: quadsTiled(
    ['x'],
    `${halfWgsl}
fn nearest(v: f32) -> f32 { return ofHalf(halfOf(v)); }
fn quad(q: u32) {
  let v = x[q];
  x[q] = vec4f(nearest(v.x), nearest(v.y), nearest(v.z), nearest(v.w));
}`,
  ),
};
