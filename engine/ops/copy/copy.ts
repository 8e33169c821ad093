import type { Kernel } from '../kernel.ts';
import { elementwiseWgsl, stridedThreads } from '../strided.ts';

/** out = x, n elements. */
export const copy: Kernel = {
  name: 'copy',
  operands: [
    { name: 'x', dtype: 'f32', access: 'read' },
    { name: 'out', dtype: 'f32', access: 'write' },
  ],
  params: [{ name: 'n', type: 'u32' }],
  constants: [],
  threads: ({ n }) => stridedThreads(n),
  cost: ({ n }) => ({ flops: 0, bytes: 8 * n }),
  run([x, out], { n }) {
    for (let i = 0; i < n; i++) out[i] = x[i];
  },
  wgsl: elementwiseWgsl('p.n', '\nfn element(e: u32) { out[e] = x[e]; }'),
};
