import type { Kernel } from '../kernel.ts';
import { elementwiseWgsl, stridedThreads } from '../strided.ts';
import { mix, randomBitsWgsl } from './hash.ts';
import { positionParams } from './init-uniform.ts';

/** Values of N(0, deviation²): an entry of the table of quantiles times the deviation, one product that is rounded once on every device. */
export const initNormal: Kernel = {
  name: 'init-normal',
  operands: [
    { name: 'out', dtype: 'f32', access: 'write' },
    { name: 'quantiles', dtype: 'f32', access: 'read' },
  ],
  params: [...positionParams, { name: 'deviation', type: 'f32' }],
  constants: [],
  threads: ({ n }) => stridedThreads(n),
  cost: ({ n }) => ({ flops: 12 * n, bytes: 8 * n }),
  run([out, quantiles], { n, offset, first, key, deviation }) {
    const factor = Math.fround(deviation);
    for (let e = 0; e < n; e++) out[offset + e] = quantiles[mix(key ^ (first + e)) >>> 16] * factor;
  },
  wgsl: elementwiseWgsl(
    'p.n',
    `${randomBitsWgsl}
fn element(e: u32) { out[p.offset + e] = quantiles[random_bits(p.first + e) >> 16u] * p.deviation; }`,
  ),
};
