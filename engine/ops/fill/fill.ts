import type { Kernel } from '../kernel.ts';
import { elementwiseWgsl, stridedThreads } from '../strided.ts';

/** out[offset … offset + n − 1] = value. */
export const fill: Kernel = {
  name: 'fill',
  operands: [{ name: 'out', dtype: 'f32', access: 'write' }],
  params: [
    { name: 'n', type: 'u32' },
    { name: 'offset', type: 'u32' },
    { name: 'value', type: 'f32' },
  ],
  constants: [],
  threads: ({ n }) => stridedThreads(n),
  cost: ({ n }) => ({ flops: 0, bytes: 4 * n }),
  run(views, { n, offset, value }) {
    views[0].fill(value, offset, offset + n);
  },
  wgsl: elementwiseWgsl('p.n', '\nfn element(e: u32) { out[p.offset + e] = p.value; }'),
};
