import type { Kernel, Params } from '../kernel.ts';
import { foldTiles, tileIndexWgsl } from '../tiles.ts';

/** Columns of a workgroup, and the threads that share the rows of each. */
const COLUMNS = 16;
const LANES = 16;

/** Rows that a thread has under way at once: few workgroups go through all rows, so the latency of memory is what takes time. */
const AHEAD = 8;

const ahead = (text: (i: number) => string) => Array.from({ length: AHEAD }, (_, i) => text(i)).join('\n      ');

/** Both gradients in plain TypeScript. */
export function runLayerNormGradWeight(
  [dy, s, stats, dweight, dbias]: readonly Float32Array[],
  { R, D, accumulate }: Params,
): void {
  const sums = new Float64Array(2 * D);
  for (let row = 0; row < R; row++) {
    const base = row * D;
    const mean = stats[2 * row];
    const rstd = stats[2 * row + 1];
    for (let c = 0; c < D; c++) {
      sums[2 * c] += dy[base + c] * (s[base + c] - mean) * rstd;
      sums[2 * c + 1] += dy[base + c];
    }
  }
  for (let c = 0; c < D; c++) {
    dweight[c] = accumulate === 1 ? dweight[c] + sums[2 * c] : sums[2 * c];
    dbias[c] = accumulate === 1 ? dbias[c] + sums[2 * c + 1] : sums[2 * c + 1];
  }
}

/** WGSL: `fn gradColumn(c: u32)`, one thread a column; `accumulate` is the parameter that says whether to add. */
export const gradColumnWgsl = (accumulate: string) => `
fn gradColumn(c: u32) {
  var sums = vec2f();
  for (var row = 0u; row < p.R; row++) {
    let d = dy[row * p.D + c];
    sums += vec2f(d * (s[row * p.D + c] - stats[2u * row]) * stats[2u * row + 1u], d);
  }
  if (p.${accumulate} == 1u) { sums += vec2f(dweight[c], dbias[c]); }
  dweight[c] = sums.x;
  dbias[c] = sums.y;
}
`;

/** Workgroups of `gradColumnsTile`. */
export const columnTiles = (D: number) => Math.ceil(D / COLUMNS);

/** WGSL: `fn gradColumnsTile(tile: u32, index: u32)`, a workgroup of COLUMNS · LANES threads for COLUMNS columns. */
export const gradColumnsTileWgsl = (accumulate: string) => `
var<workgroup> lanes: array<vec2f, ${COLUMNS * LANES}>;
fn columnTiles() -> u32 { return (p.D + ${COLUMNS - 1}u) / ${COLUMNS}u; }
fn gradColumnsTile(tile: u32, index: u32) {
  let c = tile * ${COLUMNS}u + index % ${COLUMNS}u;
  var sums = vec2f();
  if (c < p.D) {
    var row = index / ${COLUMNS}u;
    for (; row + ${(AHEAD - 1) * LANES}u < p.R; row += ${AHEAD * LANES}u) {
      ${ahead((i) => `let d${i} = dy[(row + ${i * LANES}u) * p.D + c]; let s${i} = s[(row + ${i * LANES}u) * p.D + c];`)}
      ${ahead((i) => `let m${i} = stats[2u * row + ${2 * i * LANES}u]; let r${i} = stats[2u * row + ${2 * i * LANES + 1}u];`)}
      ${ahead((i) => `sums += vec2f(d${i} * (s${i} - m${i}) * r${i}, d${i});`)}
    }
    for (; row < p.R; row += ${LANES}u) {
      let d = dy[row * p.D + c];
      sums += vec2f(d * (s[row * p.D + c] - stats[2u * row]) * stats[2u * row + 1u], d);
    }
  }
  lanes[index] = sums;
  workgroupBarrier();
  if (index >= ${COLUMNS}u || c >= p.D) { return; }
  sums = vec2f();
  for (var lane = 0u; lane < ${LANES}u; lane++) { sums += lanes[lane * ${COLUMNS}u + index]; }
  if (p.${accumulate} == 1u) { sums += vec2f(dweight[c], dbias[c]); }
  dweight[c] = sums.x;
  dbias[c] = sums.y;
}
`;

/** vec4s of columns of a workgroup, and the threads that share the rows of each, when dy and s are read 16 bytes at a time. */
const QUADS = 2;
const QUAD_LANES = 128;

export const hasColumnQuads = ({ D }: Params) => D % (4 * QUADS) === 0;
export const columnQuadTiles = (D: number) => D / (4 * QUADS);

/** WGSL: `fn gradColumnsQuads(tile: u32, index: u32)`, a workgroup of 256 threads for 8 columns. */
export const gradColumnsQuadsWgsl = (accumulate: string) => `
var<workgroup> quadLanes: array<vec4f, ${QUADS * QUAD_LANES}>;
/** The sum over the lanes of a quad, in the first thread of each. */
fn laneSum(value: vec4f, index: u32) -> vec4f {
  workgroupBarrier();
  quadLanes[index] = value;
  for (var half = ${QUAD_LANES / 2}u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (index < half * ${QUADS}u) { quadLanes[index] += quadLanes[index + half * ${QUADS}u]; }
  }
  return quadLanes[index];
}
fn columnQuadTiles() -> u32 { return p.D / ${4 * QUADS}u; }
fn gradColumnsQuads(tile: u32, index: u32) {
  let quads = p.D / 4u;
  let c = tile * ${QUADS}u + index % ${QUADS}u;
  var products = vec4f();
  var plain = vec4f();
  var row = index / ${QUADS}u;
  for (; row + ${(AHEAD - 1) * QUAD_LANES}u < p.R; row += ${AHEAD * QUAD_LANES}u) {
    ${ahead((i) => `let d${i} = dy[(row + ${i * QUAD_LANES}u) * quads + c]; let s${i} = s[(row + ${i * QUAD_LANES}u) * quads + c];`)}
    ${ahead((i) => `let m${i} = stats[2u * row + ${2 * i * QUAD_LANES}u]; let r${i} = stats[2u * row + ${2 * i * QUAD_LANES + 1}u];`)}
    ${ahead((i) => `products += d${i} * ((s${i} - m${i}) * r${i}); plain += d${i};`)}
  }
  for (; row < p.R; row += ${QUAD_LANES}u) {
    let d = dy[row * quads + c];
    products += d * ((s[row * quads + c] - stats[2u * row]) * stats[2u * row + 1u]);
    plain += d;
  }
  products = laneSum(products, index);
  plain = laneSum(plain, index);
  if (index >= ${QUADS}u) { return; }
  if (p.${accumulate} == 1u) { products += dweight[c]; plain += dbias[c]; }
  dweight[c] = products;
  dbias[c] = plain;
}
`;

/**
 * Gradients of a layer norm's weight and bias, from dy and its input s[R, D]: dweight[c] = Σ dy · (s − mean) · rstd and
 * dbias[c] = Σ dy over the R rows.
 */
export const layerNormGradWeight: Kernel = {
  name: 'layer-norm-grad-weight',
  operands: [
    { name: 'dy', dtype: 'f32', access: 'read' },
    { name: 's', dtype: 'f32', access: 'read' },
    { name: 'stats', dtype: 'f32', access: 'read' },
    { name: 'dweight', dtype: 'f32', access: 'read_write' },
    { name: 'dbias', dtype: 'f32', access: 'read_write' },
  ],
  params: [
    { name: 'R', type: 'u32' },
    { name: 'D', type: 'u32' },
    { name: 'accumulate', type: 'u32' },
  ],
  constants: [],
  threads: ({ D }) => D,
  cost: ({ R, D, accumulate }) => ({ flops: 5 * R * D, bytes: 4 * (2 * R * D + 2 * R + 2 * (1 + accumulate) * D) }),
  run: (views, params) => runLayerNormGradWeight(views as Float32Array[], params),
  wgsl: `${gradColumnWgsl('accumulate')}
fn kernel(c: u32) { gradColumn(c); }
`,
  tiled: {
    special: [
      {
        name: 'quads',
        vectors: ['dy', 's', 'dweight', 'dbias'],
        workgroupSize: [QUADS * QUAD_LANES, 1, 1],
        workgroups: ({ D }) => foldTiles(columnQuadTiles(D)),
        fits: hasColumnQuads,
        wgsl: `${tileIndexWgsl}${gradColumnsQuadsWgsl('accumulate')}
fn tile(group: vec3u, local: vec3u, index: u32) {
  let i = tileIndex(group);
  if (i < columnQuadTiles()) { gradColumnsQuads(i, index); }
}
`,
      },
    ],
    workgroupSize: [COLUMNS * LANES, 1, 1],
    workgroups: ({ D }) => foldTiles(columnTiles(D)),
    fits: ({ R }) => R >= LANES,
    wgsl: `${tileIndexWgsl}${gradColumnsTileWgsl('accumulate')}
fn tile(group: vec3u, local: vec3u, index: u32) { gradColumnsTile(tileIndex(group), index); }
`,
  },
};
