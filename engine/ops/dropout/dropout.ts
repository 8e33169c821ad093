import type { Kernel } from '../kernel.ts';
import { dropoutFactor, dropoutMask, dropoutParams, dropoutWgsl } from './dropout-mask.ts';

/** out = x, elements dropped with probability `dropout` and the others scaled by 1/(1 − dropout). Its own gradient, too. */
export const dropout: Kernel = {
  name: 'dropout',
  operands: [
    { name: 'x', dtype: 'f32', access: 'read' },
    { name: 'control', dtype: 'f32', access: 'read' },
    { name: 'out', dtype: 'f32', access: 'write' },
  ],
  params: [{ name: 'n', type: 'u32' }, ...dropoutParams],
  constants: [],
  threads: ({ n }) => n,
  cost: ({ n }) => ({ flops: n, bytes: 8 * n }),
  run([x, control, out], params) {
    const mask = dropoutMask(control, params);
    for (let i = 0; i < params.n; i++) out[i] = x[i] * dropoutFactor(mask, i);
  },
  wgsl: `${dropoutWgsl}
fn kernel(i: u32) {
  out[i] = x[i] * dropout_factor(dropout_mask(), i);
}`,
};
