import { fixedSum, fixedSumWgsl, SUM_LANES, TILED_SUM_THREADS, tiledFixedSumWgsl } from '../fixed-sum.ts';
import type { Kernel } from '../kernel.ts';
import { foldTiles, tileIndexWgsl } from '../tiles.ts';

/** Inputs of one output of `treeSum`. */
export const TREE_SUM_INPUTS = 256;
const SUMS_PER_TILE = TILED_SUM_THREADS / SUM_LANES;

const outputs = (n: number) => Math.ceil(n / TREE_SUM_INPUTS);

/** One level of the tree that adds the rows of a norm: out[i] is the `fixedSum` of up to 256 inputs from x[256·i]. */
export const treeSum: Kernel = {
  name: 'tree-sum',
  operands: [
    { name: 'x', dtype: 'f32', access: 'read' },
    { name: 'out', dtype: 'f32', access: 'write' },
  ],
  params: [
    { name: 'n', type: 'u32' },
    { name: 'xOffset', type: 'u32' },
    { name: 'outOffset', type: 'u32' },
  ],
  constants: [],
  threads: ({ n }) => outputs(n),
  cost: ({ n }) => ({ flops: n, bytes: 4 * (n + outputs(n)) }),
  run(views, { n, xOffset, outOffset }) {
    const [x, out] = views as [Float32Array, Float32Array];
    for (let i = 0; i < outputs(n); i++) {
      const first = i * TREE_SUM_INPUTS;
      out[outOffset + i] = fixedSum(x, xOffset + first, Math.min(TREE_SUM_INPUTS, n - first), false);
    }
  },
  wgsl: `${fixedSumWgsl('sumOf', 'x[at]')}
fn kernel(i: u32) {
  let first = i * ${TREE_SUM_INPUTS}u;
  out[p.outOffset + i] = sumOf(p.xOffset + first, min(${TREE_SUM_INPUTS}u, p.n - first));
}
`,
  tiled: {
    workgroupSize: [TILED_SUM_THREADS, 1, 1],
    workgroups: ({ n }) => foldTiles(Math.ceil(outputs(n) / SUMS_PER_TILE)),
    fits: () => true,
    wgsl: `${tileIndexWgsl}${tiledFixedSumWgsl('sumOf', 'x[at]')}
fn tile(group: vec3u, local: vec3u, index: u32) {
  let i = tileIndex(group) * ${SUMS_PER_TILE}u + index / ${SUM_LANES}u;
  let first = min(i * ${TREE_SUM_INPUTS}u, p.n);
  let count = min(${TREE_SUM_INPUTS}u, p.n - first);
  let sum = sumOf(p.xOffset + first, count, index);
  if (count > 0u && index % ${SUM_LANES}u == 0u) { out[p.outOffset + i] = sum; }
}
`,
  },
};
