import type { Kernel } from '../kernel.ts';
import { elementwiseWgsl, stridedThreads } from '../strided.ts';

/** out[i] += x[i] for n elements. */
export const add: Kernel = {
  name: 'add',
  operands: [
    { name: 'out', dtype: 'f32', access: 'read_write' },
    { name: 'x', dtype: 'f32', access: 'read' },
  ],
  params: [{ name: 'n', type: 'u32' }],
  constants: [],
  threads: ({ n }) => stridedThreads(n),
  cost: ({ n }) => ({ flops: n, bytes: 12 * n }),
  run(views, { n }) {
    const [out, x] = views as [Float32Array, Float32Array];
    for (let i = 0; i < n; i++) out[i] += x[i];
  },
  wgsl: elementwiseWgsl('p.n', '\nfn element(e: u32) { out[e] += x[e]; }'),
};
