import type { Kernel } from '../kernel.ts';
import { ROW_TILE_THREADS, tileSumWgsl } from '../tile-sum.ts';
import { foldTiles, tileIndexWgsl } from '../tiles.ts';

/**
 * Gradient of a root-mean-square norm in its input s[R, D], from dy: with x̂ = s·rstd and g = dy·weight,
 * ds = rstd·(g − x̂·mean(g·x̂)).
 */
export const rmsNormGrad: Kernel = {
  name: 'rms-norm-grad',
  operands: [
    { name: 'dy', dtype: 'f32', access: 'read' },
    { name: 's', dtype: 'f32', access: 'read' },
    { name: 'rstd', dtype: 'f32', access: 'read' },
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
  cost: ({ R, D, accumulate }) => ({ flops: 9 * R * D, bytes: 4 * ((3 + accumulate) * R * D + D + R) }),
  run(views, { R, D, accumulate }) {
    const [dy, s, rstd, weight, ds] = views as Float32Array[];
    for (let row = 0; row < R; row++) {
      const base = row * D;
      const scale = rstd[row];
      let sum = 0;
      for (let c = 0; c < D; c++) sum += dy[base + c] * weight[c] * s[base + c] * scale;
      const mean = sum / D;
      for (let c = 0; c < D; c++) {
        const d = scale * (dy[base + c] * weight[c] - s[base + c] * scale * mean);
        ds[base + c] = accumulate === 1 ? ds[base + c] + d : d;
      }
    }
  },
  wgsl: `
fn kernel(row: u32) {
  let base = row * p.D;
  let scale = rstd[row];
  var sum = 0.0;
  for (var c = 0u; c < p.D; c++) { sum += dy[base + c] * weight[c] * s[base + c] * scale; }
  let mean = sum / f32(p.D);
  for (var c = 0u; c < p.D; c++) {
    let d = scale * (dy[base + c] * weight[c] - s[base + c] * scale * mean);
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
  let scale = rstd[row];
  var sum = 0.0;
  for (var c = index; c < p.D; c += ${ROW_TILE_THREADS}u) { sum += dy[base + c] * weight[c] * s[base + c] * scale; }
  let mean = tileSum(vec2f(sum, 0.0), index).x / f32(p.D);
  for (var c = index; c < p.D; c += ${ROW_TILE_THREADS}u) {
    let d = scale * (dy[base + c] * weight[c] - s[base + c] * scale * mean);
    if (p.accumulate == 1u) { ds[base + c] += d; } else { ds[base + c] = d; }
  }
}
`,
  },
};
