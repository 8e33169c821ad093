import type { Kernel } from '../kernel.ts';
import { dropoutFactor, dropoutMask, dropoutWgsl } from './dropout-mask.ts';

/** out = x, elements dropped with probability `dropout` and the others scaled by 1/(1 − dropout). Its own gradient, too. */
export const dropout: Kernel = {
  name: 'dropout',
  operands: [
    { name: 'x', dtype: 'f32', access: 'read' },
    { name: 'control', dtype: 'f32', access: 'read' },
    { name: 'out', dtype: 'f32', access: 'write' },
  ],
  params: [
    { name: 'n', type: 'u32' },
    { name: 'dropout', type: 'f32' },
    { name: 'seed', type: 'u32' },
    { name: 'site', type: 'u32' },
    { name: 'rank', type: 'u32' },
  ],
  constants: [],
  threads: ({ n }) => n,
  cost: ({ n }) => ({ flops: n, bytes: 8 * n }),
  run([x, control, out], { n, dropout, seed, site, rank }) {
    const mask = dropoutMask(control, dropout, seed, site, rank);
    for (let i = 0; i < n; i++) out[i] = x[i] * dropoutFactor(mask, i);
  },
  wgsl: `${dropoutWgsl}
fn kernel(i: u32) {
  out[i] = x[i] * dropout_factor(dropout_mask(), i);
}`,
};
