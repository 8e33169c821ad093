import { dropoutFactor, dropoutMask, dropoutParams, dropoutWgsl } from '../dropout/dropout-mask.ts';
import type { Kernel, OperandSpec } from '../kernel.ts';
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

function gradsKernel(drops: boolean): Kernel {
  const operand = (name: string, access: OperandSpec['access']): OperandSpec => ({ name, dtype: 'f32', access });
  const mask = drops ? dropoutWgsl : '';
  return {
    name: drops ? 'layer-norm-grads-drop' : 'layer-norm-grads',
    operands: [
      ...['dy', 's', 'stats', 'weight'].map((name) => operand(name, 'read')),
      ...['ds', 'dweight', 'dbias'].map((name) => operand(name, 'read_write')),
      ...(drops ? [operand('control', 'read'), operand('dropped', 'write')] : []),
    ],
    params: [
      { name: 'R', type: 'u32' },
      { name: 'D', type: 'u32' },
      { name: 'accumulate', type: 'u32' },
      { name: 'weightAccumulate', type: 'u32' },
      ...(drops ? dropoutParams : []),
    ],
    constants: [],
    threads: ({ R, D }) => R + D,
    cost: ({ R, D, accumulate, weightAccumulate }) => ({
      flops: 19 * R * D,
      bytes: 4 * ((3 + accumulate + (drops ? 1 : 0)) * R * D + 2 * R + (3 + 2 * weightAccumulate) * D),
    }),
    run(views, params) {
      const [dy, s, stats, weight, ds, dweight, dbias, control, dropped] = views as Float32Array<ArrayBuffer>[];
      runLayerNormGrad([dy, s, stats, weight, ds], params);
      runLayerNormGradWeight([dy, s, stats, dweight, dbias], { ...params, accumulate: params.weightAccumulate });
      if (!drops) return;
      const mask = dropoutMask(control, params);
      for (let i = 0; i < dropped.length; i++) dropped[i] = ds[i] * dropoutFactor(mask, i);
    },
    wgsl: `${mask}${gradRowWgsl(drops)}${gradColumnWgsl('weightAccumulate')}
fn kernel(i: u32) {
  if (i < p.R) { gradRow(i); } else { gradColumn(i - p.R); }
}
`,
    // Columns first: each of their few workgroups goes through all rows, beside the many of the rows.
    tiled: {
      special: [
        {
          name: 'quads',
          vectors: [...rowQuads(drops), 'dweight', 'dbias'],
          workgroupSize: [ROW_TILE_THREADS, 1, 1],
          workgroups: ({ R, D }) => foldTiles(R + columnQuadTiles(D)),
          fits: (params) => hasRowQuads(params) && hasColumnQuads(params),
          wgsl: `${tileIndexWgsl}${mask}${gradRowQuadsWgsl(drops)}${gradColumnsQuadsWgsl('weightAccumulate')}
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
      wgsl: `${tileIndexWgsl}${mask}${gradRowTileWgsl(drops)}${gradColumnsTileWgsl('weightAccumulate')}
fn tile(group: vec3u, local: vec3u, index: u32) {
  let i = tileIndex(group);
  let columns = columnTiles();
  if (i < columns) { gradColumnsTile(i, index); } else if (i < columns + p.R) { gradRowTile(i - columns, index); }
}
`,
    },
  };
}

/**
 * `layerNormGrad` and `layerNormGradWeight` in one dispatch: the first threads have the rows, the others the columns.
 * `accumulate` is for ds, `weightAccumulate` for dweight and dbias.
 */
export const layerNormGrads: Kernel = gradsKernel(false);

/** The same with `layerNormGradDrop`. */
export const layerNormGradsDrop: Kernel = gradsKernel(true);
