import { isFiniteWgsl } from '../finite.ts';
import type { Kernel } from '../kernel.ts';
import { foldTiles, tileIndexWgsl } from '../tiles.ts';
import { LOWEST } from './cross-entropy-partial.ts';

const TILE_THREADS = 64;

// The last lines of both variants. A target at or above V is refused where batches are made; the clamp only keeps the read inside.
const finishWgsl = `
fn finish(row: u32, highest: f32, sum: f32) {
  let at = p.firstRow + row;
  if (!isFinite(sum)) {
    lse[at] = sum;
    rowLoss[at] = sum;
    return;
  }
  let value = highest + log(sum);
  lse[at] = value;
  rowLoss[at] = value - logits[row * p.ld + min(targets[at], p.V - 1u)];
}
`;

/**
 * Second half: per row, lse = log Σ exp(logit) from the partials of `crossEntropyPartial`, and the loss
 * rowLoss = lse − logit of the target. The R rows begin with row `firstRow` of targets, rowLoss and lse. `run` throws RangeError for a target that is not below V.
 */
export const crossEntropy: Kernel = {
  name: 'cross-entropy',
  operands: [
    { name: 'logits', dtype: 'f32', access: 'read' },
    { name: 'targets', dtype: 'u32', access: 'read' },
    { name: 'partial', dtype: 'f32', access: 'read' },
    { name: 'rowLoss', dtype: 'f32', access: 'write' },
    { name: 'lse', dtype: 'f32', access: 'write' },
  ],
  params: [
    { name: 'R', type: 'u32' },
    { name: 'V', type: 'u32' },
    { name: 'ld', type: 'u32' },
    { name: 'chunks', type: 'u32' },
    { name: 'firstRow', type: 'u32' },
  ],
  constants: [],
  threads: ({ R }) => R,
  cost: ({ R, chunks }) => ({ flops: 4 * R * chunks, bytes: 4 * R * (2 * chunks + 4) }),
  run(views, { R, V, ld, chunks, firstRow }) {
    const [logits, targets, partial, rowLoss, lse] = views as [
      Float32Array,
      Uint32Array,
      Float32Array,
      Float32Array,
      Float32Array,
    ];
    for (let row = 0; row < R; row++) {
      const at = firstRow + row;
      if (targets[at] >= V) throw new RangeError(`target ${targets[at]} of row ${at} is not below ${V}`);
      const base = 2 * row * chunks;
      let highest = LOWEST;
      for (let c = 0; c < chunks; c++) highest = Math.max(highest, partial[base + 2 * c]);
      let sum = 0;
      for (let c = 0; c < chunks; c++) sum += partial[base + 2 * c + 1] * Math.exp(partial[base + 2 * c] - highest);
      const finite = Number.isFinite(sum);
      const value = finite ? highest + Math.log(sum) : sum;
      lse[at] = value;
      rowLoss[at] = finite ? value - logits[row * ld + targets[at]] : sum;
    }
  },
  wgsl: `${isFiniteWgsl}${finishWgsl}
fn kernel(row: u32) {
  let first = row * p.chunks;
  let end = first + p.chunks;
  var highest = ${LOWEST};
  for (var c = first; c < end; c++) { highest = max(highest, partial[2u * c]); }
  var sum = 0.0;
  for (var c = first; c < end; c++) { sum += partial[2u * c + 1u] * exp(partial[2u * c] - highest); }
  finish(row, highest, sum);
}
`,
  tiled: {
    workgroupSize: [TILE_THREADS, 1, 1],
    workgroups: ({ R }) => foldTiles(R),
    fits: ({ chunks }) => chunks >= 8,
    wgsl: `${isFiniteWgsl}${finishWgsl}${tileIndexWgsl}
var<workgroup> lanes: array<f32, ${TILE_THREADS}>;
fn tile(group: vec3u, local: vec3u, index: u32) {
  let row = tileIndex(group);
  if (row >= p.R) { return; }
  let first = row * p.chunks + index;
  let end = (row + 1u) * p.chunks;
  var own = ${LOWEST};
  for (var c = first; c < end; c += ${TILE_THREADS}u) { own = max(own, partial[2u * c]); }
  lanes[index] = own;
  for (var half = ${TILE_THREADS / 2}u; half >= 1u; half /= 2u) {
    workgroupBarrier();
    if (index < half) { lanes[index] = max(lanes[index], lanes[index + half]); }
  }
  workgroupBarrier();
  let highest = lanes[0];
  workgroupBarrier();
  var sum = 0.0;
  for (var c = first; c < end; c += ${TILE_THREADS}u) { sum += partial[2u * c + 1u] * exp(partial[2u * c] - highest); }
  lanes[index] = sum;
  for (var half = ${TILE_THREADS / 2}u; half >= 1u; half /= 2u) {
    workgroupBarrier();
    if (index < half) { lanes[index] += lanes[index + half]; }
  }
  if (index == 0u) { finish(row, highest, lanes[0]); }
}
`,
  },
};
