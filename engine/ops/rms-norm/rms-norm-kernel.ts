import { halfWgsl, roundToHalf } from '../half/half.ts';
import type { Kernel, OperandSpec } from '../kernel.ts';
import { ROW_TILE_THREADS, tileSumWgsl } from '../tile-sum.ts';
import { foldTiles, tileIndexWgsl } from '../tiles.ts';

/**
 * A root-mean-square norm over the rows of x[R, D], or of x + residual, which is then kept in `sum`: y = s·rstd·weight with
 * rstd = 1 / √(mean(s²) + eps), kept in rstd[R] (Zhang and Sennrich 2019; LlamaRMSNorm). `rounds`: sums are rounded to halves first, so
 * that the norm is what it is of the halves as stored.
 */
export function rmsNormKernel(name: string, withResidual: boolean, rounds = false): Kernel {
  const source = withResidual ? 'sum' : 'x';
  const added = 'x[base + c] + residual[base + c]';
  const functions = rounds ? halfWgsl : '';
  const load = withResidual
    ? `let value = ${rounds ? `ofHalf(halfOf(${added}))` : added};\n    sum[base + c] = value;`
    : 'let value = x[base + c];';
  const read = (name: string): OperandSpec => ({ name, dtype: 'f32', access: 'read' });
  const write = (name: string): OperandSpec => ({ name, dtype: 'f32', access: 'write' });
  return {
    name,
    operands: withResidual
      ? [read('x'), read('residual'), read('weight'), write('sum'), write('y'), write('rstd')]
      : [read('x'), read('weight'), write('y'), write('rstd')],
    params: [
      { name: 'R', type: 'u32' },
      { name: 'D', type: 'u32' },
      { name: 'eps', type: 'f32' },
    ],
    constants: [],
    threads: ({ R }) => R,
    cost: ({ R, D }) => ({
      flops: (withResidual ? 5 : 4) * R * D,
      bytes: 4 * ((withResidual ? 4 : 2) * R * D + D + R),
    }),
    run(views, { R, D, eps }) {
      const [x, residual, weight, sum, y, rstd] = (
        withResidual ? views : [views[0], null, views[1], views[0], views[2], views[3]]
      ) as Float32Array[];
      for (let row = 0; row < R; row++) {
        const base = row * D;
        if (withResidual) for (let i = base; i < base + D; i++) sum[i] = x[i] + residual[i];
        if (rounds) for (let i = base; i < base + D; i++) sum[i] = roundToHalf(sum[i]);
        let squares = 0;
        for (let c = 0; c < D; c++) squares += sum[base + c] * sum[base + c];
        const scale = 1 / Math.sqrt(squares / D + eps);
        for (let c = 0; c < D; c++) y[base + c] = sum[base + c] * scale * weight[c];
        rstd[row] = scale;
      }
    },
    wgsl: `${functions}
fn kernel(row: u32) {
  let base = row * p.D;
  var squares = 0.0;
  for (var c = 0u; c < p.D; c++) {
    ${load}
    squares += value * value;
  }
  let scale = 1.0 / sqrt(squares / f32(p.D) + p.eps);
  for (var c = 0u; c < p.D; c++) { y[base + c] = ${source}[base + c] * scale * weight[c]; }
  rstd[row] = scale;
}
`,
    tiled: {
      workgroupSize: [ROW_TILE_THREADS, 1, 1],
      workgroups: ({ R }) => foldTiles(R),
      fits: ({ D }) => D >= 64,
      wgsl: `${tileIndexWgsl}${tileSumWgsl}${functions}
fn tile(group: vec3u, local: vec3u, index: u32) {
  let row = tileIndex(group);
  if (row >= p.R) { return; }
  let base = row * p.D;
  var squares = 0.0;
  for (var c = index; c < p.D; c += ${ROW_TILE_THREADS}u) {
    ${load}
    squares += value * value;
  }
  let scale = 1.0 / sqrt(tileSum(vec2f(squares, 0.0), index).x / f32(p.D) + p.eps);
  for (var c = index; c < p.D; c += ${ROW_TILE_THREADS}u) {
    y[base + c] = ${source}[base + c] * scale * weight[c];
  }
  if (index == 0u) { rstd[row] = scale; }
}
`,
    },
  };
}
