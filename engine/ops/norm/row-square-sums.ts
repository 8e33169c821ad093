import { fixedSum, fixedSumWgsl, SUM_LANES } from '../fixed-sum.ts';
import { type Kernel, type TiledVariant, WORKGROUP_THREADS } from '../kernel.ts';
import { SEGMENT_COLUMNS } from '../shard/layout.ts';
import { foldTiles, tileIndexWgsl } from '../tiles.ts';

const THREADS = 256;
/** Threads of a row, each with four of the lanes in which it is added. */
const ROW_THREADS = SUM_LANES / 4;
/** Values of a lane that are fetched before they are added, in turn. */
const TURNS = 8;
const turns = Array.from({ length: TURNS }, (_, t) => t);

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

// Both ways of reading add by the same function: a row has one sum wherever it lies.
const elementWgsl = `
fn element(at: u32, end: u32) -> f32 {
  return select(0.0, shard[at / 4u][at % 4u], at < end);
}
`;

const quads = Array.from({ length: ROW_THREADS }, (_, q) => q);

/** A row a thread, with all its lanes, four values at a time: for an adapter on which barriers are dear. */
const rowAThread: TiledVariant = {
  name: 'row a thread',
  barrierFree: true,
  vectors: ['shard'],
  workgroupSize: [WORKGROUP_THREADS, 1, 1],
  workgroups: ({ totalRows }) => foldTiles(Math.ceil(totalRows / WORKGROUP_THREADS)),
  fits: () => true,
  wgsl: `${spanWgsl}${tileIndexWgsl}${elementWgsl}
fn square(at: u32, end: u32) -> vec4f {
  var x = vec4f();
  if (at % 4u == 0u && at + 4u <= end) { x = shard[at / 4u]; }
  else { for (var lane = 0u; lane < 4u; lane++) { x[lane] = element(at + lane, end); } }
  return x * x;
}
fn tile(group: vec3u, local: vec3u, index: u32) {
  let row = tileIndex(group) * ${WORKGROUP_THREADS}u + index;
  if (row >= p.totalRows) { return; }
  let span = spanOf(row);
  let end = span.x + span.y;
  if (span.y == 1u) {
    let x = element(span.x, end);
    rows[row] = x * x;
    return;
  }
  ${quads.map((q) => `var s${q} = vec4f();`).join(' ')}
  var at = span.x;
  if (at % 4u == 0u) {
    for (; at + ${SUM_LANES}u <= end; at += ${SUM_LANES}u) {
      let c = at / 4u;
      ${quads.map((q) => `{ let x = shard[c + ${q}u]; s${q} += x * x; }`).join('\n      ')}
    }
  }
  for (; at < end; at += ${SUM_LANES}u) {
    ${quads.map((q) => `s${q} += square(at + ${4 * q}u, end);`).join('\n    ')}
  }
  let s = ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7));
  rows[row] = (s.x + s.z) + (s.y + s.w);
}
`,
};

/** Eight threads a row: real GPUs. */
const rowsTogether: TiledVariant = {
  name: 'rows together',
  vectors: ['shard'],
  workgroupSize: [THREADS, 1, 1],
  workgroups: ({ totalRows }) => foldTiles(Math.ceil(totalRows / (THREADS / ROW_THREADS))),
  fits: () => true,
  // A shard's segments are whole vec4s.
  wgsl: `${spanWgsl}${tileIndexWgsl}${elementWgsl}
var<workgroup> lanes: array<vec4f, ${THREADS}>;
fn tile(group: vec3u, local: vec3u, index: u32) {
  let row = tileIndex(group) * ${THREADS / ROW_THREADS}u + index / ${ROW_THREADS}u;
  let quad = index % ${ROW_THREADS}u;
  var span = vec2u(0u, 0u);
  if (row < p.totalRows) { span = spanOf(row); }
  let end = span.x + span.y;
  var at = span.x + 4u * quad;
  var sum = vec4f();
  if (span.x % 4u == 0u) {
    // Loads of several turns at once: what is under way bounds the rate.
    for (; at + ${(TURNS - 1) * SUM_LANES + 4}u <= end; at += ${TURNS * SUM_LANES}u) {
      ${turns.map((t) => `let x${t} = shard[at / 4u + ${(t * SUM_LANES) / 4}u];`).join(' ')}
      ${turns.map((t) => `sum = fma(x${t}, x${t}, sum);`).join(' ')}
    }
    for (; at + 4u <= end; at += ${SUM_LANES}u) {
      let x = shard[at / 4u];
      sum = fma(x, x, sum);
    }
  }
  for (; at < end; at += ${SUM_LANES}u) {
    let x = vec4f(element(at, end), element(at + 1u, end), element(at + 2u, end), element(at + 3u, end));
    sum = fma(x, x, sum);
  }
  lanes[index] = sum;
  for (var half = ${ROW_THREADS / 2}u; half >= 1u; half /= 2u) {
    workgroupBarrier();
    if (quad < half) { lanes[index] += lanes[index + half]; }
  }
  let s = lanes[index];
  if (row < p.totalRows && quad == 0u) { rows[row] = (s.x + s.z) + (s.y + s.w); }
}
`,
};

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
  tiled: { ...rowAThread, special: [rowsTogether] },
};
