import type { Kernel } from '../kernel.ts';

/**
 * dweight[tokens[r], d] += scale·Σ dout[r', d] over the positions r' of the same token, in their order. The thread of a
 * token's first position does the whole sum, so no two threads write one element.
 */
export const embeddingGrad: Kernel = {
  name: 'embedding-grad',
  operands: [
    { name: 'tokens', dtype: 'u32', access: 'read' },
    { name: 'dout', dtype: 'f32', access: 'read' },
    { name: 'dweight', dtype: 'f32', access: 'read_write' },
  ],
  params: [
    { name: 'R', type: 'u32' },
    { name: 'D', type: 'u32' },
    { name: 'scale', type: 'f32' },
  ],
  constants: [],
  threads: ({ R, D }) => R * D,
  cost: ({ R, D }) => ({ flops: 2 * R * D, bytes: 4 * (R + 3 * R * D) }),
  run([tokens, dout, dweight], { R, D, scale }) {
    const s = Math.fround(scale);
    const sums = new Map<number, Float64Array>();
    for (let r = 0; r < R; r++) {
      let sum = sums.get(tokens[r]);
      if (!sum) {
        sum = new Float64Array(D);
        sums.set(tokens[r], sum);
      }
      for (let d = 0; d < D; d++) sum[d] += dout[r * D + d];
    }
    for (const [token, sum] of sums) {
      for (let d = 0; d < D; d++) dweight[token * D + d] += s * sum[d];
    }
  },
  wgsl: `
fn kernel(i: u32) {
  let r = i / p.D;
  let d = i % p.D;
  let token = tokens[r];
  for (var q = 0u; q < r; q++) {
    if (tokens[q] == token) { return; }
  }
  var sum = dout[i];
  for (var q = r + 1u; q < p.R; q++) {
    if (tokens[q] == token) { sum += dout[q * p.D + d]; }
  }
  dweight[token * p.D + d] += p.scale * sum;
}`,
};
