import type { Kernel } from '../kernel.ts';
import { quadsTiled } from '../quads.ts';
import { elementwiseWgsl, stridedThreads } from '../strided.ts';

/**
 * The gradient through a ReLU, in place: d[i] becomes 0 where the ReLU's output h[i] is 0, and `scale` times itself elsewhere
 * (NaN too). Where h was dropped in place after the ReLU, with `scale` 1/(1 − p), it is the gradient through both.
 */
export const reluGrad: Kernel = {
  name: 'relu-grad',
  operands: [
    { name: 'h', dtype: 'f32', access: 'read' },
    { name: 'd', dtype: 'f32', access: 'read_write' },
  ],
  params: [
    { name: 'n', type: 'u32' },
    { name: 'scale', type: 'f32' },
  ],
  constants: [],
  threads: ({ n }) => stridedThreads(n),
  cost: ({ n }) => ({ flops: n, bytes: 12 * n }),
  run(views, { n, scale }) {
    const [h, d] = views as [Float32Array, Float32Array];
    for (let i = 0; i < n; i++) d[i] = h[i] <= 0 ? 0 : d[i] * scale;
  },
  wgsl: elementwiseWgsl('p.n', '\nfn element(e: u32) { d[e] = select(d[e] * p.scale, 0.0, h[e] <= 0.0); }'),
  tiled: quadsTiled(['h', 'd'], '\nfn quad(q: u32) { d[q] = select(d[q] * p.scale, vec4f(), h[q] <= vec4f()); }'),
};
