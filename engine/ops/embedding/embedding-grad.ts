import type { Kernel } from '../kernel.ts';
import { foldTiles, tileIndexWgsl } from '../tiles.ts';

/** Threads of a workgroup, vec4s of a row that each holds at most, and positions that are looked through at once. */
const THREADS = 256;
const QUADS = 4;
const SPAN = 4096;

const each = (text: (i: number) => string) =>
  Array.from({ length: QUADS }, (_, i) => `if (index + ${i * THREADS}u < quads) { ${text(i)} }`).join(' ');

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
  // A workgroup a position: its threads look for the token together, and those of its first position add, in the same order.
  tiled: {
    vectors: ['dout', 'dweight'],
    workgroupSize: [THREADS, 1, 1],
    workgroups: ({ R }) => foldTiles(R),
    fits: ({ R, D }) => R > 0 && D % 4 === 0 && D >= 64 && D <= 4 * THREADS * QUADS,
    wgsl: `${tileIndexWgsl}
var<workgroup> found: array<atomic<u32>, ${SPAN / 32}>;
fn tile(group: vec3u, local: vec3u, index: u32) {
  let r = tileIndex(group);
  if (r >= p.R) { return; }
  let token = tokens[r];
  let quads = p.D / 4u;
  var mine = true;
  ${Array.from({ length: QUADS }, (_, i) => `var sum${i} = vec4f();`).join(' ')}
  for (var first = 0u; first < p.R; first += ${SPAN}u) {
    for (var word = index; word < ${SPAN / 32}u; word += ${THREADS}u) { atomicStore(&found[word], 0u); }
    workgroupBarrier();
    for (var q = index; q < min(${SPAN}u, p.R - first); q += ${THREADS}u) {
      if (tokens[first + q] == token) { atomicOr(&found[q / 32u], 1u << (q % 32u)); }
    }
    workgroupBarrier();
    for (var word = 0u; mine && word < ${SPAN / 32}u; word++) {
      var bits = atomicLoad(&found[word]);
      while (bits != 0u) {
        let q = first + word * 32u + countTrailingZeros(bits);
        bits &= bits - 1u;
        mine = q >= r;
        if (!mine) { break; }
        ${each((i) => `sum${i} += dout[q * quads + index + ${i * THREADS}u];`)}
      }
    }
    workgroupBarrier();
  }
  if (!mine) { return; }
  ${each((i) => `dweight[token * quads + index + ${i * THREADS}u] += p.scale * sum${i};`)}
}`,
  },
};
