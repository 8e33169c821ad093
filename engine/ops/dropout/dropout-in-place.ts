import type { Kernel } from '../kernel.ts';
import { stridedThreads, stridedWgsl } from '../strided.ts';
import { dropoutFactor, dropoutMask, dropoutParams, dropoutWgsl } from './dropout-mask.ts';

/** `dropout` over its own input: for an op whose backward needs no more of its output than what is left of it. */
export const dropoutInPlace: Kernel = {
  name: 'dropout-in-place',
  operands: [
    { name: 'x', dtype: 'f32', access: 'read_write' },
    { name: 'control', dtype: 'f32', access: 'read' },
  ],
  params: [{ name: 'n', type: 'u32' }, ...dropoutParams],
  constants: [],
  threads: ({ n }) => stridedThreads(n),
  cost: ({ n }) => ({ flops: n, bytes: 8 * n }),
  run([x, control], params) {
    const mask = dropoutMask(control, params);
    for (let i = 0; i < params.n; i++) x[i] *= dropoutFactor(mask, i);
  },
  wgsl: `${dropoutWgsl}${stridedWgsl()}
fn kernel(i: u32) {
  let mask = dropout_mask();
  let end = min(p.n, stridedEnd(i));
  for (var e = stridedFirst(i); e < end; e += STRIDE) { x[e] *= dropout_factor(mask, e); }
}`,
};
