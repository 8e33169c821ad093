import type { Kernel } from '../kernel.ts';

/**
 * out[r, d] = weight[tokens[r], d]·scale + row[r mod T, d]: the T rows of `row` are given out in turn (T = 1: one for all).
 * tokens[R] must be below V, weight is [V, D].
 */
export const embedding: Kernel = {
  name: 'embedding',
  operands: [
    { name: 'tokens', dtype: 'u32', access: 'read' },
    { name: 'weight', dtype: 'f32', access: 'read' },
    { name: 'row', dtype: 'f32', access: 'read' },
    { name: 'out', dtype: 'f32', access: 'write' },
  ],
  params: [
    { name: 'R', type: 'u32' },
    { name: 'D', type: 'u32' },
    { name: 'scale', type: 'f32' },
    { name: 'T', type: 'u32' },
  ],
  constants: [],
  threads: ({ R, D }) => R * D,
  cost: ({ R, D, T }) => ({ flops: 2 * R * D, bytes: 4 * (R + T * D + 2 * R * D) }),
  run([tokens, weight, row, out], { R, D, scale, T }) {
    const s = Math.fround(scale);
    for (let r = 0; r < R; r++) {
      const from = tokens[r] * D;
      const at = (r % T) * D;
      for (let d = 0; d < D; d++) out[r * D + d] = weight[from + d] * s + row[at + d];
    }
  },
  wgsl: `
fn kernel(i: u32) {
  let r = i / p.D;
  let d = i % p.D;
  out[i] = weight[tokens[r] * p.D + d] * p.scale + row[r % p.T * p.D + d];
}`,
};
