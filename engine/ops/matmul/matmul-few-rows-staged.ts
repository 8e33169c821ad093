import type { TiledVariant } from '../kernel.ts';
import { storeWgsl } from './matmul-store.ts';

const THREADS = 256;

const range = (n: number) => Array.from({ length: n }, (_, i) => i);

export interface StagedRowsShape {
  /** A grid of threads on the outputs of a workgroup; 256 / (gridRows · gridColumns) such grids each have a slice of k. */
  readonly gridRows: number;
  readonly gridColumns: number;
  /** Outputs of a thread: rows `gridRows` apart, columns `gridColumns` apart. */
  readonly rows: number;
  readonly columns: number;
  /** Products added between two barriers, in vec4s along k: a multiple of the slices. */
  readonly depth: number;
  /** Tiles that are on their way while one is added. */
  readonly ahead: number;
}

/**
 * A product A·B with few rows: a workgroup has all rows of a few columns, so that a weight is fetched once. Tiles of b
 * pass through workgroup memory, where they are turned to run along k as the rows of a do, which come straight from memory.
 * At the end the slices of k are added in order.
 */
export function stagedRowsVariant(bias: boolean, shape: StagedRowsShape): TiledVariant {
  const { gridRows, gridColumns, rows, columns, depth, ahead } = shape;
  const grid = gridRows * gridColumns;
  const slices = THREADS / grid;
  const steps = depth / slices;
  // A row of a staged tile is one vec4 longer than needed, against bank conflicts.
  const stride = depth + 1;
  const M = gridRows * rows;
  const N = gridColumns * columns;
  const sums = range(rows).flatMap((r) => range(columns).map((c) => `s${r}_${c}`));
  const quads = Math.ceil(sums.length / 4);
  const staged = N * stride;
  const quadsAtOnce = Math.max(1, Math.min(quads, Math.floor(Math.max(staged, 1024) / THREADS)));
  const rounds = Math.ceil(quads / quadsAtOnce);
  const bCount = N * depth;
  const fetches = (count: number) => Math.ceil(count / THREADS);
  const guard = (i: number, count: number, body: string) =>
    (i + 1) * THREADS <= count ? body : `if (index < ${count - i * THREADS}u) { ${body} }`;
  const e = (i: number) => `(index + ${i * THREADS}u)`;
  const fetch = (set: number, k4: string) => `
    ${range(fetches(bCount))
      .map((i) =>
        guard(i, bCount, `b${set}_${i} = fetchB(n0 / 4u + ${e(i)} % ${N / 4}u, (${k4}) * 4u + ${e(i)} / ${N / 4}u);`),
      )
      .join('\n    ')}`;
  const stage = (set: number) => `
    ${range(fetches(bCount))
      .map((i) => guard(i, bCount, `stageB(${e(i)} % ${N / 4}u * 4u, ${e(i)} / ${N / 4}u, b${set}_${i});`))
      .join('\n    ')}`;
  // Neighbouring slices take neighbouring vec4s of a row, so that a's rows are read whole.
  const add = (set: number) => `
    for (var step = 0u; step < ${steps}u; step++) {
      let at = step * ${slices}u + slice;
      let k = k4 + ${set * depth}u + at;
      let inside = vec4u(k * 4u) + vec4u(0u, 1u, 2u, 3u) < vec4u(p.K);
      let kept = min(k, (p.K - 1u) / 4u);
      ${range(rows)
        .map((r) => `let x${r} = select(vec4f(), a[row${r} + kept], inside);`)
        .join(' ')}
      ${range(columns)
        .map((c) => `let y${c} = staged[(column + ${c * gridColumns}u) * ${stride}u + at];`)
        .join(' ')}
      ${range(rows)
        .map((r) =>
          range(columns)
            .flatMap((c) => ['x', 'y', 'z', 'w'].map((d) => `s${r}_${c} += x${r}.${d} * y${c}.${d};`))
            .join(' '),
        )
        .join('\n      ')}
    }`;
  return {
    name: `few-${M}x${N}s`,
    vectors: ['a', 'b'],
    workgroupSize: [THREADS, 1, 1],
    workgroups: (params) => [Math.ceil(params.N / N), Math.ceil(params.M / M), 1],
    fits: ({ N: width, K, aOffset, lda, bOffset, ldb }) =>
      K > 0 && [aOffset, lda, bOffset, ldb, width].every((n) => n % 4 === 0),
    wgsl: `
var<workgroup> staged: array<vec4f, ${Math.max(staged, quadsAtOnce * THREADS)}>;
${storeWgsl(bias)}
fn fetchB(n4: u32, k: u32) -> vec4f {
  let value = b[(p.bOffset + min(k, p.K - 1u) * p.ldb) / 4u + min(n4, p.N / 4u - 1u)];
  return select(vec4f(), value, vec4<bool>(k < p.K));
}
fn stageB(n: u32, k: u32, value: vec4f) {
  let at = n * ${stride}u + k / 4u;
  ${range(4)
    .map((j) => `staged[at + ${j * stride}u][k % 4u] = value[${j}];`)
    .join('\n  ')}
}
fn tile(group: vec3u, local: vec3u, index: u32) {
  let m0 = group.y * ${M}u;
  let n0 = group.x * ${N}u;
  let slice = index / ${grid}u;
  let row = index % ${grid}u / ${gridColumns}u;
  let column = index % ${gridColumns}u;
  ${range(rows)
    .map((r) => `let row${r} = (p.aOffset + min(m0 + row + ${r * gridRows}u, p.M - 1u) * p.lda) / 4u;`)
    .join('\n  ')}
  ${sums.map((s) => `var ${s} = 0.0;`).join(' ')}
  ${range(ahead)
    .flatMap((set) => [...range(fetches(bCount)).map((i) => `var b${set}_${i} = vec4f();`)])
    .join(' ')}
  ${range(ahead)
    .map((set) => fetch(set, `${set * depth}u`))
    .join('')}
  for (var k4 = 0u; ; k4 += ${ahead * depth}u) {${range(ahead)
    .map(
      (set) => `${stage(set)}
    workgroupBarrier();
    if ((k4 + ${(set + ahead) * depth}u) * 4u < p.K) {${fetch(set, `k4 + ${(set + ahead) * depth}u`)}
    }${add(set)}
    workgroupBarrier();
    if ((k4 + ${(set + 1) * depth}u) * 4u >= p.K) { break; }`,
    )
    .join('')}
  }
  ${range(rounds)
    .map((round) => {
      const first = round * quadsAtOnce;
      const count = Math.min(quadsAtOnce, quads - first);
      const outputs = Math.min(4 * count, sums.length - 4 * first) * grid;
      return `${round > 0 ? 'workgroupBarrier();' : ''}
  ${range(count)
    .map((v) => {
      const four = range(4).map((j) => sums[4 * (first + v) + j] ?? '0.0');
      return `staged[${v * THREADS}u + index] = vec4f(${four.join(', ')});`;
    })
    .join('\n  ')}
  workgroupBarrier();
  for (var at = index; at < ${outputs}u; at += ${THREADS}u) {
    let sum = at / ${grid}u;
    let begin = sum / 4u * ${THREADS}u + at % ${grid}u;
    var total = 0.0;
    for (var other = 0u; other < ${slices}u; other++) { total += staged[begin + other * ${grid}u][sum % 4u]; }
    let output = sum + ${4 * first}u;
    let m = m0 + at % ${grid}u / ${gridColumns}u + output / ${columns}u * ${gridRows}u;
    let n = n0 + at % ${gridColumns}u + output % ${columns}u * ${gridColumns}u;
    store(m, n, total);
  }`;
    })
    .join('\n  ')}
}`,
  };
}
