import type { Kernel } from '../kernel.ts';
import { sigmoid, sigmoidWgsl } from '../sigmoid.ts';
import { elementwiseWgsl, stridedThreads } from '../strided.ts';
import { geluExponent, geluExponentSlope, geluWgsl } from './gelu-tanh.ts';

/** The gradient through GELU's tanh form, in place: d[i] *= gelu′(x[i]), with z its exponent σ(z) + x·σ(z)·(1 − σ(z))·z′. */
export const geluGrad: Kernel = {
  name: 'gelu-grad',
  operands: [
    { name: 'x', dtype: 'f32', access: 'read' },
    { name: 'd', dtype: 'f32', access: 'read_write' },
  ],
  params: [{ name: 'n', type: 'u32' }],
  constants: [],
  threads: ({ n }) => stridedThreads(n),
  cost: ({ n }) => ({ flops: 18 * n, bytes: 12 * n }),
  run([x, d], { n }) {
    for (let i = 0; i < n; i++) {
      const s = sigmoid(geluExponent(x[i]));
      d[i] *= s + x[i] * s * (1 - s) * geluExponentSlope(x[i]);
    }
  },
  wgsl: elementwiseWgsl(
    'p.n',
    `${sigmoidWgsl}${geluWgsl}
fn element(e: u32) {
  let s = sigmoid(gelu_exponent(x[e]));
  d[e] *= s + x[e] * s * (1.0 - s) * gelu_exponent_slope(x[e]);
}`,
  ),
};
