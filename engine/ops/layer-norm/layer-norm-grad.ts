import type { Kernel } from '../kernel.ts';
import { ROW_TILE_THREADS, tileSumWgsl } from '../tile-sum.ts';
import { foldTiles, tileIndexWgsl } from '../tiles.ts';

/**
 * Gradient of a layer norm in its input s[R, D] (x, or the sum with the residual), from dy: with x̂ = (s − mean) · rstd and
 * g = dy · weight, ds = rstd · (g − mean(g) − x̂ · mean(g · x̂)).
 */
export const layerNormGrad: Kernel = {
  name: 'layer-norm-grad',
  operands: [
    { name: 'dy', dtype: 'f32', access: 'read' },
    { name: 's', dtype: 'f32', access: 'read' },
    { name: 'stats', dtype: 'f32', access: 'read' },
    { name: 'weight', dtype: 'f32', access: 'read' },
    { name: 'ds', dtype: 'f32', access: 'read_write' },
  ],
  params: [
    { name: 'R', type: 'u32' },
    { name: 'D', type: 'u32' },
    { name: 'accumulate', type: 'u32' },
  ],
  constants: [],
  threads: ({ R }) => R,
  cost: ({ R, D, accumulate }) => ({ flops: 14 * R * D, bytes: 4 * ((3 + accumulate) * R * D + D + 2 * R) }),
  run(views, { R, D, accumulate }) {
    const [dy, s, stats, weight, ds] = views as Float32Array[];
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
  },
  wgsl: `
fn kernel(row: u32) {
  let base = row * p.D;
  let mean = stats[2u * row];
  let rstd = stats[2u * row + 1u];
  var sums = vec2f();
  for (var c = 0u; c < p.D; c++) {
    let g = dy[base + c] * weight[c];
    sums += vec2f(g, g * (s[base + c] - mean) * rstd);
  }
  let means = sums / f32(p.D);
  for (var c = 0u; c < p.D; c++) {
    let x = (s[base + c] - mean) * rstd;
    let d = rstd * (dy[base + c] * weight[c] - means.x - x * means.y);
    if (p.accumulate == 1u) { ds[base + c] += d; } else { ds[base + c] = d; }
  }
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
  let mean = stats[2u * row];
  let rstd = stats[2u * row + 1u];
  var sums = vec2f();
  for (var c = index; c < p.D; c += ${ROW_TILE_THREADS}u) {
    let g = dy[base + c] * weight[c];
    sums += vec2f(g, g * (s[base + c] - mean) * rstd);
  }
  let means = tileSum(sums, index) / f32(p.D);
  for (var c = index; c < p.D; c += ${ROW_TILE_THREADS}u) {
    let x = (s[base + c] - mean) * rstd;
    let d = rstd * (dy[base + c] * weight[c] - means.x - x * means.y);
    if (p.accumulate == 1u) { ds[base + c] += d; } else { ds[base + c] = d; }
  }
}
`,
  },
};
