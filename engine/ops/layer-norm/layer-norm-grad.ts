import { dropoutFactor, dropoutMask, dropoutParams, dropoutWgsl } from '../dropout/dropout-mask.ts';
import type { Kernel, Params, TiledVariant } from '../kernel.ts';
import { ROW_TILE_THREADS, tileSumWgsl } from '../tile-sum.ts';
import { foldTiles, tileIndexWgsl } from '../tiles.ts';

/** ds of all rows in plain TypeScript. */
export function runLayerNormGrad(
  [dy, s, stats, weight, ds]: readonly Float32Array[],
  { R, D, accumulate }: Params,
): void {
  for (let row = 0; row < R; row++) {
    const base = row * D;
    const mean = stats[2 * row];
    const rstd = stats[2 * row + 1];
    let sumG = 0;
    let sumGX = 0;
    for (let c = 0; c < D; c++) {
      const g = dy[base + c] * weight[c];
      sumG += g;
      sumGX += g * (s[base + c] - mean) * rstd;
    }
    const meanG = sumG / D;
    const meanGX = sumGX / D;
    for (let c = 0; c < D; c++) {
      const x = (s[base + c] - mean) * rstd;
      const d = rstd * (dy[base + c] * weight[c] - meanG - x * meanGX);
      ds[base + c] = accumulate === 1 ? ds[base + c] + d : d;
    }
  }
}

const element = (drops: boolean) => `
    let x = (s[base + c] - mean) * rstd;
    var d = rstd * (dy[base + c] * weight[c] - means.x - x * means.y);
    if (p.accumulate == 1u) { d += ds[base + c]; }
    ds[base + c] = d;
    ${drops ? 'dropped[base + c] = d * dropout_factor(mask, base + c);' : ''}`;

/** WGSL: `fn gradRow(row: u32)`, one thread a row. */
export const gradRowWgsl = (drops: boolean) => `
fn gradRow(row: u32) {
  let base = row * p.D;
  let mean = stats[2u * row];
  let rstd = stats[2u * row + 1u];
  ${drops ? 'let mask = dropout_mask();' : ''}
  var sums = vec2f();
  for (var c = 0u; c < p.D; c++) {
    let g = dy[base + c] * weight[c];
    sums += vec2f(g, g * (s[base + c] - mean) * rstd);
  }
  let means = sums / f32(p.D);
  for (var c = 0u; c < p.D; c++) {${element(drops)}
  }
}
`;

/** WGSL: `fn gradRowTile(row: u32, index: u32)`, a workgroup of ROW_TILE_THREADS a row. */
export const gradRowTileWgsl = (drops: boolean) => `${tileSumWgsl}
fn gradRowTile(row: u32, index: u32) {
  let base = row * p.D;
  let mean = stats[2u * row];
  let rstd = stats[2u * row + 1u];
  ${drops ? 'let mask = dropout_mask();' : ''}
  var sums = vec2f();
  for (var c = index; c < p.D; c += ${ROW_TILE_THREADS}u) {
    let g = dy[base + c] * weight[c];
    sums += vec2f(g, g * (s[base + c] - mean) * rstd);
  }
  let means = tileSum(sums, index) / f32(p.D);
  for (var c = index; c < p.D; c += ${ROW_TILE_THREADS}u) {${element(drops)}
  }
}
`;

/** vec4s of a row that a thread holds at most between the sums and the gradients. */
const QUADS = 4;

/** Whether `gradRowQuads` has rows of this length. */
export const hasRowQuads = ({ D }: Params) => D % 4 === 0 && D >= 64 && D <= 4 * ROW_TILE_THREADS * QUADS;
export const rowQuads = (drops: boolean) => ['dy', 's', 'weight', 'ds', ...(drops ? ['dropped'] : [])];

/** WGSL: `fn gradRowQuads(row: u32, index: u32)`: the same, read once and 16 bytes at a time, what is dropped stored so too. */
export function gradRowQuadsWgsl(drops: boolean): string {
  const quads = Array.from({ length: QUADS }, (_, i) => i);
  const each = (text: (i: number) => string) =>
    quads
      .map(
        (i) => `if (index + ${i * ROW_TILE_THREADS}u < quads) {
    let c = index + ${i * ROW_TILE_THREADS}u;
    let q = row * quads + c;
    ${text(i)}
  }`,
      )
      .join('\n  ');
  const factors = [0, 1, 2, 3].map((c) => `dropout_factor(mask, 4u * q + ${c}u)`).join(', ');
  return `${tileSumWgsl}
fn gradRowQuads(row: u32, index: u32) {
  let quads = p.D / 4u;
  let mean = stats[2u * row];
  let rstd = stats[2u * row + 1u];
  ${drops ? 'let mask = dropout_mask();' : ''}
  var sums = vec2f();
  ${quads.map((i) => `var g${i} = vec4f(); var x${i} = vec4f();`).join(' ')}
  ${each((i) => `g${i} = dy[q] * weight[c]; x${i} = (s[q] - mean) * rstd; sums += vec2f(dot(g${i}, vec4f(1.0)), dot(g${i}, x${i}));`)}
  let means = tileSum(sums, index) / f32(p.D);
  ${each(
    (i) => `var d = rstd * (g${i} - means.x - x${i} * means.y);
    if (p.accumulate == 1u) { d += ds[q]; }
    ds[q] = d;
    ${drops ? `dropped[q] = d * vec4f(${factors});` : ''}`,
  )}
}
`;
}

/** A workgroup a row; memory bounds it. */
function quadsVariant(drops: boolean): TiledVariant {
  return {
    name: 'quads',
    vectors: rowQuads(drops),
    workgroupSize: [ROW_TILE_THREADS, 1, 1],
    workgroups: ({ R }) => foldTiles(R),
    fits: hasRowQuads,
    wgsl: `${tileIndexWgsl}${drops ? dropoutWgsl : ''}${gradRowQuadsWgsl(drops)}
fn tile(group: vec3u, local: vec3u, index: u32) {
  let row = tileIndex(group);
  if (row < p.R) { gradRowQuads(row, index); }
}
`,
  };
}

function gradKernel(drops: boolean): Kernel {
  return {
    name: drops ? 'layer-norm-grad-drop' : 'layer-norm-grad',
    operands: [
      { name: 'dy', dtype: 'f32', access: 'read' },
      { name: 's', dtype: 'f32', access: 'read' },
      { name: 'stats', dtype: 'f32', access: 'read' },
      { name: 'weight', dtype: 'f32', access: 'read' },
      { name: 'ds', dtype: 'f32', access: 'read_write' },
      ...(drops
        ? ([
            { name: 'control', dtype: 'f32', access: 'read' },
            { name: 'dropped', dtype: 'f32', access: 'write' },
          ] as const)
        : []),
    ],
    params: [
      { name: 'R', type: 'u32' },
      { name: 'D', type: 'u32' },
      { name: 'accumulate', type: 'u32' },
      ...(drops ? dropoutParams : []),
    ],
    constants: [],
    threads: ({ R }) => R,
    cost: ({ R, D, accumulate }) => ({
      flops: 14 * R * D,
      bytes: 4 * ((3 + accumulate + (drops ? 1 : 0)) * R * D + D + 2 * R),
    }),
    run(views, params) {
      runLayerNormGrad(views as Float32Array[], params);
      if (!drops) return;
      const [, , , , ds, control, dropped] = views;
      const { R, D } = params;
      const mask = dropoutMask(control, params);
      for (let i = 0; i < R * D; i++) dropped[i] = ds[i] * dropoutFactor(mask, i);
    },
    wgsl: `${drops ? dropoutWgsl : ''}${gradRowWgsl(drops)}
fn kernel(row: u32) { gradRow(row); }
`,
    tiled: {
      special: [quadsVariant(drops)],
      workgroupSize: [ROW_TILE_THREADS, 1, 1],
      workgroups: ({ R }) => foldTiles(R),
      fits: ({ D }) => D >= 64,
      wgsl: `${tileIndexWgsl}${drops ? dropoutWgsl : ''}${gradRowTileWgsl(drops)}
fn tile(group: vec3u, local: vec3u, index: u32) {
  let row = tileIndex(group);
  if (row < p.R) { gradRowTile(row, index); }
}
`,
    },
  };
}

/**
 * Gradient of a layer norm in its input s[R, D] (x, or the sum with the residual), from dy: with x̂ = (s − mean) · rstd and
 * g = dy · weight, ds = rstd · (g − mean(g) − x̂ · mean(g · x̂)).
 */
export const layerNormGrad: Kernel = gradKernel(false);

/** The same, and dropped = dropout(ds): the gradient of the term that was dropped before the sum. */
export const layerNormGradDrop: Kernel = gradKernel(true);
