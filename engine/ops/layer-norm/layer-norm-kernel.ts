import { dropoutFactor, dropoutMask, dropoutParams, dropoutWgsl } from '../dropout/dropout-mask.ts';
import { halfWgsl, roundToHalf } from '../half/half.ts';
import type { Kernel, OperandSpec, TiledVariant } from '../kernel.ts';
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

/** What a norm is taken of: x, x + residual, or dropout of x + residual. The sums are kept in `sum`. */
export type NormInput = 'x' | 'sum' | 'dropped sum';

/**
 * A layer norm over the rows of x[R, D], or of a sum with a residual. Mean first, variance in a second pass, so that a large
 * mean costs no digits. `rounds`: sums are rounded to halves first, so that the norm is what it is of the halves as stored.
 */
export function layerNormKernel(name: string, input: NormInput, rounds = false): Kernel {
  const sums = input !== 'x';
  const drops = input === 'dropped sum';
  const source = sums ? 'sum' : 'x';
  const x = drops ? 'x[base + c] * dropout_factor(mask, base + c)' : 'x[base + c]';
  const sum = rounds ? `ofHalf(halfOf(${x} + residual[base + c]))` : `${x} + residual[base + c]`;
  const functions = `${drops ? dropoutWgsl : ''}${rounds ? halfWgsl : ''}`;
  const load = sums ? `let value = ${sum};\n    sum[base + c] = value;` : 'let value = x[base + c];';
  const before = drops ? 'let mask = dropout_mask();' : '';
  const read = (name: string): OperandSpec => ({ name, dtype: 'f32', access: 'read' });
  const write = (name: string): OperandSpec => ({ name, dtype: 'f32', access: 'write' });
  return {
    name,
    operands: [
      read('x'),
      ...(sums ? [read('residual')] : []),
      read('weight'),
      read('bias'),
      ...(drops ? [read('control')] : []),
      ...(sums ? [write('sum')] : []),
      write('y'),
      write('stats'),
    ],
    params: [
      { name: 'R', type: 'u32' },
      { name: 'D', type: 'u32' },
      { name: 'eps', type: 'f32' },
      ...(drops ? dropoutParams : []),
    ],
    constants: [],
    threads: ({ R }) => R,
    cost: ({ R, D }) => ({
      flops: (sums ? 9 : 8) * R * D,
      bytes: 4 * ((sums ? 4 : 2) * R * D + 2 * D + 2 * R),
    }),
    run(views, params) {
      const { R, D, eps } = params;
      const all = views as Float32Array<ArrayBuffer>[];
      const [first] = all;
      const [y, stats] = all.slice(-2);
      const [weight, bias] = all.slice(sums ? 2 : 1);
      let of = first;
      if (sums) {
        const residual = all[1];
        of = all[all.length - 3];
        const mask = drops ? dropoutMask(all[4], params) : null;
        for (let i = 0; i < R * D; i++)
          of[i] = (mask ? Math.fround(first[i] * dropoutFactor(mask, i)) : first[i]) + residual[i];
        if (rounds) for (let i = 0; i < R * D; i++) of[i] = roundToHalf(of[i]);
      }
      for (let row = 0; row < R; row++) normaliseRow(of, row, D, eps, weight, bias, y, stats);
    },
    wgsl: `${functions}
fn kernel(row: u32) {
  let base = row * p.D;
  ${before}
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
      special: [quadsVariant(input, rounds)],
      workgroupSize: [ROW_TILE_THREADS, 1, 1],
      workgroups: ({ R }) => foldTiles(R),
      fits: ({ D }) => D >= 64,
      wgsl: `${tileIndexWgsl}${tileSumWgsl}${functions}
fn tile(group: vec3u, local: vec3u, index: u32) {
  let row = tileIndex(group);
  if (row >= p.R) { return; }
  let base = row * p.D;
  ${before}
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

/** vec4s of a row that a thread holds at most, from the sum until the norm is written. */
const QUADS = 4;

/** A workgroup a row, read once and 16 bytes at a time; memory bounds it. */
function quadsVariant(input: NormInput, rounds: boolean): TiledVariant {
  const sums = input !== 'x';
  const drops = input === 'dropped sum';
  const x = drops
    ? `x[q] * vec4f(${[0, 1, 2, 3].map((c) => `dropout_factor(mask, 4u * q + ${c}u)`).join(', ')})`
    : 'x[q]';
  const value = sums ? `${x} + residual[q]` : x;
  const rounded = rounds ? `vec4f(${['x', 'y', 'z', 'w'].map((c) => `ofHalf(halfOf(s.${c}))`).join(', ')})` : 's';
  const quads = Array.from({ length: QUADS }, (_, i) => i);
  const each = (text: (i: number) => string) =>
    quads.map((i) => `if (index + ${i * ROW_TILE_THREADS}u < quads) { ${text(i)} }`).join('\n  ');
  return {
    name: 'quads',
    vectors: ['x', 'weight', 'bias', 'y', ...(sums ? ['residual', 'sum'] : [])],
    workgroupSize: [ROW_TILE_THREADS, 1, 1],
    workgroups: ({ R }) => foldTiles(R),
    fits: ({ D }) => D % 4 === 0 && D >= 64 && D <= 4 * ROW_TILE_THREADS * QUADS,
    wgsl: `${tileIndexWgsl}${tileSumWgsl}${drops ? dropoutWgsl : ''}${rounds ? halfWgsl : ''}
fn tile(group: vec3u, local: vec3u, index: u32) {
  let row = tileIndex(group);
  if (row >= p.R) { return; }
  let quads = p.D / 4u;
  ${drops ? 'let mask = dropout_mask();' : ''}
  var total = vec4f();
  ${quads.map((i) => `var v${i} = vec4f();`).join(' ')}
  ${each((i) => `let q = row * quads + index + ${i * ROW_TILE_THREADS}u; let s = ${value}; v${i} = ${rounded};${sums ? ` sum[q] = v${i};` : ''} total += v${i};`)}
  let mean = tileSum(vec2f(total.x + total.y + total.z + total.w, 0.0), index).x / f32(p.D);
  var squares = 0.0;
  ${each((i) => `let deviation = v${i} - mean; squares += dot(deviation, deviation);`)}
  let rstd = 1.0 / sqrt(tileSum(vec2f(squares, 0.0), index).x / f32(p.D) + p.eps);
  ${each((i) => `let at = index + ${i * ROW_TILE_THREADS}u; y[row * quads + at] = (v${i} - mean) * rstd * weight[at] + bias[at];`)}
  if (index == 0u) {
    stats[2u * row] = mean;
    stats[2u * row + 1u] = rstd;
  }
}
`,
  };
}
