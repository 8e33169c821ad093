import type { Kernel } from '../kernel.ts';

/** out[r, d] = weight[tokens[r], d]·scale + row[d]; tokens[R] must be below V, weight is [V, D]. */
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
  ],
  constants: [],
  threads: ({ R, D }) => R * D,
  cost: ({ R, D }) => ({ flops: 2 * R * D, bytes: 4 * (R + D + 2 * R * D) }),
  run([tokens, weight, row, out], { R, D, scale }) {
    const s = Math.fround(scale);
    for (let r = 0; r < R; r++) {
      const from = tokens[r] * D;
      for (let d = 0; d < D; d++) out[r * D + d] = weight[from + d] * s + row[d];
    }
  },
  wgsl: `
fn kernel(i: u32) {
  let d = i % p.D;
  out[i] = weight[tokens[i / p.D] * p.D + d] * p.scale + row[d];
}`,
};
