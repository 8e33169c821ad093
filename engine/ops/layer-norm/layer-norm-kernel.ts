import type { Kernel, OperandSpec } from '../kernel.ts';
import { ROW_TILE_THREADS, tileSumWgsl } from '../tile-sum.ts';
import { foldTiles, tileIndexWgsl } from '../tiles.ts';

/** One row in plain TypeScript; `stats` gets its mean and 1/σ. */
function normaliseRow(
  source: Float32Array,
  row: number,
  D: number,
  eps: number,
  weight: Float32Array,
  bias: Float32Array,
  y: Float32Array,
  stats: Float32Array,
): void {
  const base = row * D;
  let total = 0;
  for (let c = 0; c < D; c++) total += source[base + c];
  const mean = total / D;
  let squares = 0;
  for (let c = 0; c < D; c++) {
    const deviation = source[base + c] - mean;
    squares += deviation * deviation;
  }
  const rstd = 1 / Math.sqrt(squares / D + eps);
  for (let c = 0; c < D; c++) y[base + c] = (source[base + c] - mean) * rstd * weight[c] + bias[c];
  stats[2 * row] = mean;
  stats[2 * row + 1] = rstd;
}

/**
 * A layer norm over the rows of x[R, D], or of x + residual, which is then kept in `sum`. Mean first, variance in a second
 * pass, so that a large mean costs no digits.
 */
export function layerNormKernel(name: string, withResidual: boolean): Kernel {
  const source = withResidual ? 'sum' : 'x';
  const load = withResidual
    ? 'let value = x[base + c] + residual[base + c];\n    sum[base + c] = value;'
    : 'let value = x[base + c];';
  const read = (name: string): OperandSpec => ({ name, dtype: 'f32', access: 'read' });
  const write = (name: string): OperandSpec => ({ name, dtype: 'f32', access: 'write' });
  return {
    name,
    operands: withResidual
      ? [read('x'), read('residual'), read('weight'), read('bias'), write('sum'), write('y'), write('stats')]
      : [read('x'), read('weight'), read('bias'), write('y'), write('stats')],
    params: [
      { name: 'R', type: 'u32' },
      { name: 'D', type: 'u32' },
      { name: 'eps', type: 'f32' },
    ],
    constants: [],
    threads: ({ R }) => R,
    cost: ({ R, D }) => ({
      flops: (withResidual ? 9 : 8) * R * D,
      bytes: 4 * ((withResidual ? 4 : 2) * R * D + 2 * D + 2 * R),
    }),
    run(views, { R, D, eps }) {
      if (withResidual) {
        const [x, residual, weight, bias, sum, y, stats] = views as Float32Array[];
        for (let i = 0; i < R * D; i++) sum[i] = x[i] + residual[i];
        for (let row = 0; row < R; row++) normaliseRow(sum, row, D, eps, weight, bias, y, stats);
      } else {
        const [x, weight, bias, y, stats] = views as Float32Array[];
        for (let row = 0; row < R; row++) normaliseRow(x, row, D, eps, weight, bias, y, stats);
      }
    },
    wgsl: `
fn kernel(row: u32) {
  let base = row * p.D;
  var total = 0.0;
  for (var c = 0u; c < p.D; c++) {
    ${load}
    total += value;
  }
  let mean = total / f32(p.D);
  var squares = 0.0;
  for (var c = 0u; c < p.D; c++) {
    let deviation = ${source}[base + c] - mean;
    squares += deviation * deviation;
  }
  let rstd = 1.0 / sqrt(squares / f32(p.D) + p.eps);
  for (var c = 0u; c < p.D; c++) {
    y[base + c] = (${source}[base + c] - mean) * rstd * weight[c] + bias[c];
  }
  stats[2u * row] = mean;
  stats[2u * row + 1u] = rstd;
}
`,
    tiled: {
      workgroupSize: [ROW_TILE_THREADS, 1, 1],
      workgroups: ({ R }) => foldTiles(R),
      fits: ({ D }) => D >= 64,
      wgsl: `${tileIndexWgsl}${tileSumWgsl}
fn tile(group: vec3u, local: vec3u, index: u32) {
  let row = tileIndex(group);
  if (row >= p.R) { return; }
  let base = row * p.D;
  var total = 0.0;
  for (var c = index; c < p.D; c += ${ROW_TILE_THREADS}u) {
    ${load}
    total += value;
  }
  let mean = tileSum(vec2f(total, 0.0), index).x / f32(p.D);
  var squares = 0.0;
  for (var c = index; c < p.D; c += ${ROW_TILE_THREADS}u) {
    let deviation = ${source}[base + c] - mean;
    squares += deviation * deviation;
  }
  let rstd = 1.0 / sqrt(tileSum(vec2f(squares, 0.0), index).x / f32(p.D) + p.eps);
  for (var c = index; c < p.D; c += ${ROW_TILE_THREADS}u) {
    y[base + c] = (${source}[base + c] - mean) * rstd * weight[c] + bias[c];
  }
  if (index == 0u) {
    stats[2u * row] = mean;
    stats[2u * row + 1u] = rstd;
  }
}
`,
    },
  };
}
