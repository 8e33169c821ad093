import { fixedSum, fixedSumWgsl, SUM_LANES, TILED_SUM_THREADS, tiledFixedSumWgsl } from '../fixed-sum.ts';
import type { Kernel } from '../kernel.ts';
import { SEGMENT_COLUMNS } from '../shard/layout.ts';
import { foldTiles, tileIndexWgsl } from '../tiles.ts';

const SUMS_PER_TILE = TILED_SUM_THREADS / SUM_LANES;

// spanOf(row): offset and length of a local row of the shard; length 0 where this rank has no such row.
const spanWgsl = `
fn spanOf(row: u32) -> vec2u {
  var low = 0u;
  var high = p.segments;
  while (high - low > 1u) {
    let middle = (low + high) / 2u;
    if (table[middle * ${SEGMENT_COLUMNS}u + 6u] <= row) { low = middle; } else { high = middle; }
  }
  let t = low * ${SEGMENT_COLUMNS}u;
  let within = row - table[t + 6u];
  if (p.rank * table[t + 1u] + within >= table[t + 3u]) { return vec2u(0u, 0u); }
  return vec2u(table[t] + within * table[t + 2u], table[t + 2u]);
}
`;

/**
 * Sum of squares of each row of a rank's shard, in the order of `fixedSum`: rows[i] for local row i (the chunks of all
 * segments one after the other, `totalRows` in all); 0 for a row that this rank does not have.
 */
export const rowSquareSums: Kernel = {
  name: 'row-square-sums',
  operands: [
    { name: 'table', dtype: 'u32', access: 'read' },
    { name: 'shard', dtype: 'f32', access: 'read' },
    { name: 'rows', dtype: 'f32', access: 'write' },
  ],
  params: [
    { name: 'segments', type: 'u32' },
    { name: 'totalRows', type: 'u32' },
    { name: 'rank', type: 'u32' },
  ],
  constants: [],
  threads: ({ totalRows }) => totalRows,
  // The lengths of the rows are in the table, which a price does not see: the caller knows the shard's size.
  cost: ({ totalRows }) => ({ flops: 2 * totalRows, bytes: 8 * totalRows }),
  run(views, { segments, rank }) {
    const [table, shard, rows] = views as [Uint32Array, Float32Array, Float32Array];
    for (let s = 0; s < segments; s++) {
      const [shardOffset, chunkRows, rowLength, total, , , localRowStart] = table.subarray(
        s * SEGMENT_COLUMNS,
        (s + 1) * SEGMENT_COLUMNS,
      );
      for (let k = 0; k < chunkRows; k++) {
        const exists = rank * chunkRows + k < total;
        rows[localRowStart + k] = exists ? fixedSum(shard, shardOffset + k * rowLength, rowLength, true) : 0;
      }
    }
  },
  wgsl: `${spanWgsl}${fixedSumWgsl('squareSum', 'shard[at] * shard[at]')}
fn kernel(i: u32) {
  let span = spanOf(i);
  rows[i] = squareSum(span.x, span.y);
}
`,
  tiled: {
    workgroupSize: [TILED_SUM_THREADS, 1, 1],
    workgroups: ({ totalRows }) => foldTiles(Math.ceil(totalRows / SUMS_PER_TILE)),
    fits: () => true,
    wgsl: `${spanWgsl}${tileIndexWgsl}${tiledFixedSumWgsl('squareSum', 'shard[at] * shard[at]')}
fn tile(group: vec3u, local: vec3u, index: u32) {
  let row = tileIndex(group) * ${SUMS_PER_TILE}u + index / ${SUM_LANES}u;
  var span = vec2u(0u, 0u);
  if (row < p.totalRows) { span = spanOf(row); }
  let sum = squareSum(span.x, span.y, index);
  if (row < p.totalRows && index % ${SUM_LANES}u == 0u) { rows[row] = sum; }
}
`,
  },
};
