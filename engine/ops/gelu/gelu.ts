import type { Kernel } from '../kernel.ts';
import { sigmoid, sigmoidWgsl } from '../sigmoid.ts';
import { elementwiseWgsl, stridedThreads } from '../strided.ts';
import { geluExponent, geluWgsl } from './gelu-tanh.ts';

/** out[i] = gelu(x[i]), GELU's tanh form. */
export const gelu: Kernel = {
  name: 'gelu',
  operands: [
    { name: 'x', dtype: 'f32', access: 'read' },
    { name: 'out', dtype: 'f32', access: 'write' },
  ],
  params: [{ name: 'n', type: 'u32' }],
  constants: [],
  threads: ({ n }) => stridedThreads(n),
  cost: ({ n }) => ({ flops: 9 * n, bytes: 8 * n }),
  run([x, out], { n }) {
    for (let i = 0; i < n; i++) out[i] = x[i] * sigmoid(geluExponent(x[i]));
  },
  wgsl: elementwiseWgsl(
    'p.n',
    `${sigmoidWgsl}${geluWgsl}
fn element(e: u32) { out[e] = x[e] * sigmoid(gelu_exponent(x[e])); }`,
  ),
};
