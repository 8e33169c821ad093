import type { Kernel } from '../kernel.ts';
import { ROW_TILE_THREADS } from '../tile-sum.ts';
import { foldTiles, tileIndexWgsl } from '../tiles.ts';
import {
  gradRowQuadsWgsl,
  gradRowTileWgsl,
  gradRowWgsl,
  hasRowQuads,
  rowQuads,
  runLayerNormGrad,
} from './layer-norm-grad.ts';
import {
  columnQuadTiles,
  columnTiles,
  gradColumnsQuadsWgsl,
  gradColumnsTileWgsl,
  gradColumnWgsl,
  hasColumnQuads,
  runLayerNormGradWeight,
} from './layer-norm-grad-weight.ts';

/**
 * `layerNormGrad` and `layerNormGradWeight` in one dispatch: the first threads have the rows, the others the columns.
 * `accumulate` is for ds, `weightAccumulate` for dweight and dbias. With dropout there would be nine operands, one more than
 * every adapter has room for.
 */
export const layerNormGrads: Kernel = {
  name: 'layer-norm-grads',
  operands: [
    { name: 'dy', dtype: 'f32', access: 'read' },
    { name: 's', dtype: 'f32', access: 'read' },
    { name: 'stats', dtype: 'f32', access: 'read' },
    { name: 'weight', dtype: 'f32', access: 'read' },
    { name: 'ds', dtype: 'f32', access: 'read_write' },
    { name: 'dweight', dtype: 'f32', access: 'read_write' },
    { name: 'dbias', dtype: 'f32', access: 'read_write' },
  ],
  params: [
    { name: 'R', type: 'u32' },
    { name: 'D', type: 'u32' },
    { name: 'accumulate', type: 'u32' },
    { name: 'weightAccumulate', type: 'u32' },
  ],
  constants: [],
  threads: ({ R, D }) => R + D,
  cost: ({ R, D, accumulate, weightAccumulate }) => ({
    flops: 19 * R * D,
    bytes: 4 * ((3 + accumulate) * R * D + 2 * R + (3 + 2 * weightAccumulate) * D),
  }),
  run(views, params) {
    const [dy, s, stats, weight, ds, dweight, dbias] = views as Float32Array[];
    runLayerNormGrad([dy, s, stats, weight, ds], params);
    runLayerNormGradWeight([dy, s, stats, dweight, dbias], { ...params, accumulate: params.weightAccumulate });
  },
  wgsl: `${gradRowWgsl(false)}${gradColumnWgsl('weightAccumulate')}
fn kernel(i: u32) {
  if (i < p.R) { gradRow(i); } else { gradColumn(i - p.R); }
}
`,
  // Columns first: each of their few workgroups goes through all rows, beside the many of the rows.
  tiled: {
    special: [
      {
        name: 'quads',
        vectors: [...rowQuads(false), 'dweight', 'dbias'],
        workgroupSize: [ROW_TILE_THREADS, 1, 1],
        workgroups: ({ R, D }) => foldTiles(R + columnQuadTiles(D)),
        fits: (params) => hasRowQuads(params) && hasColumnQuads(params),
        wgsl: `${tileIndexWgsl}${gradRowQuadsWgsl(false)}${gradColumnsQuadsWgsl('weightAccumulate')}
fn tile(group: vec3u, local: vec3u, index: u32) {
  let i = tileIndex(group);
  let columns = columnQuadTiles();
  if (i < columns) { gradColumnsQuads(i, index); } else if (i < columns + p.R) { gradRowQuads(i - columns, index); }
}
`,
      },
    ],
    workgroupSize: [ROW_TILE_THREADS, 1, 1],
    workgroups: ({ R, D }) => foldTiles(R + columnTiles(D)),
    fits: ({ D }) => D >= 64,
    wgsl: `${tileIndexWgsl}${gradRowTileWgsl(false)}${gradColumnsTileWgsl('weightAccumulate')}
fn tile(group: vec3u, local: vec3u, index: u32) {
  let i = tileIndex(group);
  let columns = columnTiles();
  if (i < columns) { gradColumnsTile(i, index); } else if (i < columns + p.R) { gradRowTile(i - columns, index); }
}
`,
  },
};
