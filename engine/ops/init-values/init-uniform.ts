import type { Kernel, ParamSpec } from '../kernel.ts';
import { elementwiseWgsl, stridedThreads } from '../strided.ts';
import { mix, randomBitsWgsl } from './hash.ts';

/** The parameters by which a kernel makes values: out[offset + e] is that of index `first` + e, which is below 2^32. */
export const positionParams: readonly ParamSpec[] = [
  { name: 'n', type: 'u32' },
  { name: 'offset', type: 'u32' },
  { name: 'first', type: 'u32' },
  { name: 'key', type: 'u32' },
];

/**
 * Uniform values in (−bound, bound). The top 24 bits are one of 2^24 equally spaced values in (−1, 1), exact in float32;
 * one product is rounded, and nothing is added to it, so that every device has the same bits.
 */
export const initUniform: Kernel = {
  name: 'init-uniform',
  operands: [{ name: 'out', dtype: 'f32', access: 'write' }],
  params: [...positionParams, { name: 'bound', type: 'f32' }],
  constants: [],
  threads: ({ n }) => stridedThreads(n),
  cost: ({ n }) => ({ flops: 16 * n, bytes: 4 * n }),
  run([out], { n, offset, first, key, bound }) {
    const most = Math.fround(bound);
    for (let e = 0; e < n; e++) {
      const bits = mix(key ^ (first + e));
      out[offset + e] = ((bits >>> 8) * 2 + 1 - 2 ** 24) * 2 ** -24 * most;
    }
  },
  wgsl: elementwiseWgsl(
    'p.n',
    `${randomBitsWgsl}
fn element(e: u32) {
  let odd = i32((random_bits(p.first + e) >> 8u) * 2u + 1u) - 16777216;
  out[p.offset + e] = f32(odd) * 0x1p-24f * p.bound;
}`,
  ),
};
