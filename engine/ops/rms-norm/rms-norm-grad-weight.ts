import type { Kernel } from '../kernel.ts';
import { foldTiles, tileIndexWgsl } from '../tiles.ts';

/** Columns of a workgroup, and the threads that share the rows of each. */
const COLUMNS = 16;
const LANES = 16;

/** Gradient of a root-mean-square norm's weight, from dy and its input s[R, D]: dweight[c] = Σ dy·s·rstd over the R rows. */
export const rmsNormGradWeight: Kernel = {
  name: 'rms-norm-grad-weight',
  operands: [
    { name: 'dy', dtype: 'f32', access: 'read' },
    { name: 's', dtype: 'f32', access: 'read' },
    { name: 'rstd', dtype: 'f32', access: 'read' },
    { name: 'dweight', dtype: 'f32', access: 'read_write' },
  ],
  params: [
    { name: 'R', type: 'u32' },
    { name: 'D', type: 'u32' },
    { name: 'accumulate', type: 'u32' },
  ],
  constants: [],
  threads: ({ D }) => D,
  cost: ({ R, D, accumulate }) => ({ flops: 3 * R * D, bytes: 4 * (2 * R * D + R + (1 + accumulate) * D) }),
  run(views, { R, D, accumulate }) {
    const [dy, s, rstd, dweight] = views as Float32Array[];
    const sums = new Float64Array(D);
    for (let row = 0; row < R; row++)
      for (let c = 0; c < D; c++) sums[c] += dy[row * D + c] * s[row * D + c] * rstd[row];
    for (let c = 0; c < D; c++) dweight[c] = accumulate === 1 ? dweight[c] + sums[c] : sums[c];
  },
  wgsl: `
fn kernel(c: u32) {
  var sum = 0.0;
  for (var row = 0u; row < p.R; row++) { sum += dy[row * p.D + c] * s[row * p.D + c] * rstd[row]; }
  if (p.accumulate == 1u) { sum += dweight[c]; }
  dweight[c] = sum;
}
`,
  tiled: {
    workgroupSize: [COLUMNS * LANES, 1, 1],
    workgroups: ({ D }) => foldTiles(Math.ceil(D / COLUMNS)),
    fits: ({ R }) => R >= LANES,
    wgsl: `${tileIndexWgsl}
var<workgroup> lanes: array<f32, ${COLUMNS * LANES}>;
fn tile(group: vec3u, local: vec3u, index: u32) {
  let c = tileIndex(group) * ${COLUMNS}u + index % ${COLUMNS}u;
  var sum = 0.0;
  if (c < p.D) {
    for (var row = index / ${COLUMNS}u; row < p.R; row += ${LANES}u) {
      sum += dy[row * p.D + c] * s[row * p.D + c] * rstd[row];
    }
  }
  lanes[index] = sum;
  for (var half = ${(COLUMNS * LANES) / 2}u; half >= ${COLUMNS}u; half /= 2u) {
    workgroupBarrier();
    if (index < half) { lanes[index] += lanes[index + half]; }
  }
  if (index >= ${COLUMNS}u || c >= p.D) { return; }
  sum = lanes[index];
  if (p.accumulate == 1u) { sum += dweight[c]; }
  dweight[c] = sum;
}
`,
  },
};
