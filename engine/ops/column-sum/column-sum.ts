import type { Kernel } from '../kernel.ts';

/** A workgroup of the tiled variant adds so many columns, each in so many slices of rows, so many of them at a time. */
const COLUMNS = 8;
const SLICES = 32;
/** Loads that a thread has under way: few threads go through many rows, so the latency of memory is what takes time. */
const AT_ONCE = 16;

const range = (n: number) => Array.from({ length: n }, (_, i) => i);

/** out[outOffset + c] = (accumulate ? out : 0) + Σ_r x[r, c], x[R, C] with rows `ldx` apart: a bias's gradient. */
export const columnSum: Kernel = {
  name: 'column-sum',
  operands: [
    { name: 'x', dtype: 'f32', access: 'read' },
    { name: 'out', dtype: 'f32', access: 'read_write' },
  ],
  params: [
    { name: 'R', type: 'u32' },
    { name: 'C', type: 'u32' },
    { name: 'xOffset', type: 'u32' },
    { name: 'ldx', type: 'u32' },
    { name: 'outOffset', type: 'u32' },
    { name: 'accumulate', type: 'u32' },
  ],
  constants: [],
  threads: ({ C }) => C,
  cost: ({ R, C, accumulate }) => ({ flops: R * C, bytes: 4 * (R * C + C * (accumulate ? 2 : 1)) }),
  run([x, out], { R, C, xOffset, ldx, outOffset, accumulate }) {
    const sums = new Float64Array(C);
    for (let r = 0; r < R; r++) {
      const row = xOffset + r * ldx;
      for (let c = 0; c < C; c++) sums[c] += x[row + c];
    }
    for (let c = 0; c < C; c++) out[outOffset + c] = accumulate ? out[outOffset + c] + sums[c] : sums[c];
  },
  wgsl: `
fn kernel(i: u32) {
  var sum = 0.0;
  var at = p.xOffset + i;
  for (var r = 0u; r < p.R; r++) {
    sum += x[at];
    at += p.ldx;
  }
  if (p.accumulate != 0u) { sum += out[p.outOffset + i]; }
  out[p.outOffset + i] = sum;
}`,
  tiled: {
    workgroupSize: [COLUMNS * SLICES, 1, 1],
    workgroups: ({ C }) => [Math.ceil(C / COLUMNS), 1, 1],
    // With few rows the sum is short, with many columns there are threads enough without slices.
    fits: ({ R, C }) => C > 0 && R >= 4 * SLICES && C < 65_536,
    wgsl: `
var<workgroup> sums: array<f32, ${COLUMNS * SLICES}>;
fn tile(group: vec3u, local: vec3u, index: u32) {
  let column = group.x * ${COLUMNS}u + index % ${COLUMNS}u;
  let slice = index / ${COLUMNS}u;
  let first = p.xOffset + min(column, p.C - 1u);
  var sum = vec4f();
  var r = slice;
  for (; r + ${(AT_ONCE - 1) * SLICES}u < p.R; r += ${AT_ONCE * SLICES}u) {
    ${range(AT_ONCE)
      .map((i) => `let x${i} = x[first + (r + ${i * SLICES}u) * p.ldx];`)
      .join(' ')}
    sum += ${range(AT_ONCE / 4)
      .map((i) => `vec4f(x${4 * i}, x${4 * i + 1}, x${4 * i + 2}, x${4 * i + 3})`)
      .join(' + ')};
  }
  for (; r < p.R; r += ${SLICES}u) { sum.x += x[first + r * p.ldx]; }
  sums[index] = (sum.x + sum.y) + (sum.z + sum.w);
  for (var half = ${SLICES / 2}u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (slice < half) { sums[index] += sums[index + half * ${COLUMNS}u]; }
  }
  if (slice == 0u && column < p.C) {
    let at = p.outOffset + column;
    out[at] = select(0.0, out[at], p.accumulate != 0u) + sums[index];
  }
}`,
  },
};
