import { isFiniteWgsl } from '../finite.ts';
import type { Kernel } from '../kernel.ts';
import { foldTiles, tileIndexWgsl } from '../tiles.ts';

/** Columns of the vocabulary that one partial covers. */
export const CROSS_ENTROPY_CHUNK = 256;
/** Below every finite logit, and finite. */
export const LOWEST = -3.4e38;
const TILE_THREADS = 64;

/** Partials per row for V columns. */
export const crossEntropyChunks = (V: number): number => Math.ceil(V / CROSS_ENTROPY_CHUNK);

/**
 * First half of a log-softmax over the first V columns of R rows, `ld` apart: partial[R, chunks, 2] = maximum m and
 * Σ exp(x − m) of each chunk of 256 columns. A logit that is NaN or infinite is left out of m and added as it is, so the
 * sum is not finite either, whatever exp and max do with it.
 */
export const crossEntropyPartial: Kernel = {
  name: 'cross-entropy-partial',
  operands: [
    { name: 'logits', dtype: 'f32', access: 'read' },
    { name: 'partial', dtype: 'f32', access: 'write' },
  ],
  params: [
    { name: 'R', type: 'u32' },
    { name: 'V', type: 'u32' },
    { name: 'ld', type: 'u32' },
    { name: 'chunks', type: 'u32' },
  ],
  constants: [],
  threads: ({ R, chunks }) => R * chunks,
  cost: ({ R, V, chunks }) => ({ flops: 4 * R * V, bytes: 4 * (R * V + 2 * R * chunks) }),
  run(views, { R, V, ld, chunks }) {
    const [logits, partial] = views as [Float32Array, Float32Array];
    for (let row = 0; row < R; row++) {
      for (let chunk = 0; chunk < chunks; chunk++) {
        const first = row * ld + chunk * CROSS_ENTROPY_CHUNK;
        const end = row * ld + Math.min((chunk + 1) * CROSS_ENTROPY_CHUNK, V);
        let max = LOWEST;
        for (let i = first; i < end; i++) if (Number.isFinite(logits[i])) max = Math.max(max, logits[i]);
        let sum = 0;
        for (let i = first; i < end; i++) sum += Number.isFinite(logits[i]) ? Math.exp(logits[i] - max) : logits[i];
        partial[2 * (row * chunks + chunk)] = max;
        partial[2 * (row * chunks + chunk) + 1] = sum;
      }
    }
  },
  wgsl: `${isFiniteWgsl}
fn kernel(i: u32) {
  let row = i / p.chunks;
  let column = (i % p.chunks) * ${CROSS_ENTROPY_CHUNK}u;
  let first = row * p.ld + column;
  let end = row * p.ld + min(column + ${CROSS_ENTROPY_CHUNK}u, p.V);
  var highest = ${LOWEST};
  for (var c = first; c < end; c++) {
    let x = logits[c];
    if (isFinite(x)) { highest = max(highest, x); }
  }
  var sum = 0.0;
  for (var c = first; c < end; c++) {
    let x = logits[c];
    if (isFinite(x)) { sum += exp(x - highest); } else { sum += x; }
  }
  partial[2u * i] = highest;
  partial[2u * i + 1u] = sum;
}
`,
  tiled: {
    workgroupSize: [TILE_THREADS, 1, 1],
    workgroups: ({ R, chunks }) => foldTiles(R * chunks),
    fits: () => true,
    wgsl: `${isFiniteWgsl}${tileIndexWgsl}
var<workgroup> lanes: array<f32, ${TILE_THREADS}>;
fn tile(group: vec3u, local: vec3u, index: u32) {
  let i = tileIndex(group);
  if (i >= p.R * p.chunks) { return; }
  let row = i / p.chunks;
  let column = (i % p.chunks) * ${CROSS_ENTROPY_CHUNK}u;
  let first = row * p.ld + column + index;
  let end = row * p.ld + min(column + ${CROSS_ENTROPY_CHUNK}u, p.V);
  var own = ${LOWEST};
  for (var c = first; c < end; c += ${TILE_THREADS}u) {
    let x = logits[c];
    if (isFinite(x)) { own = max(own, x); }
  }
  lanes[index] = own;
  for (var half = ${TILE_THREADS / 2}u; half >= 1u; half /= 2u) {
    workgroupBarrier();
    if (index < half) { lanes[index] = max(lanes[index], lanes[index + half]); }
  }
  workgroupBarrier();
  let highest = lanes[0];
  workgroupBarrier();
  var sum = 0.0;
  for (var c = first; c < end; c += ${TILE_THREADS}u) {
    let x = logits[c];
    if (isFinite(x)) { sum += exp(x - highest); } else { sum += x; }
  }
  lanes[index] = sum;
  for (var half = ${TILE_THREADS / 2}u; half >= 1u; half /= 2u) {
    workgroupBarrier();
    if (index < half) { lanes[index] += lanes[index + half]; }
  }
  if (index == 0u) {
    partial[2u * i] = highest;
    partial[2u * i + 1u] = lanes[0];
  }
}
`,
  },
};
