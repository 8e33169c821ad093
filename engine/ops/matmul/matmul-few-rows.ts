import type { Params, TiledVariant } from '../kernel.ts';
import { type StagedRowsShape, stagedRowsVariant } from './matmul-few-rows-staged.ts';
import { storeWgsl } from './matmul-store.ts';

const THREADS = 256;
/** Sums that a thread hands over between two barriers, in vec4s, at most. */
const MOST_QUADS = 4;

const range = (n: number) => Array.from({ length: n }, (_, i) => i);

/** How the 256 threads share a workgroup's outputs, and the sum over k where there are more threads than outputs. */
export interface FewRowsShape {
  /** Of the 32 neighbouring threads, so many lie side by side along n (nn; nt: 1), the others are slices of k. */
  readonly lanes: number;
  /** Eight such neighbourhoods: so many along m and n, the others are slices of k too. */
  readonly rowGroups: number;
  readonly columnGroups: number;
  /** Outputs of a thread. */
  readonly rows: number;
  readonly columns: number;
}

/** Up to so many rows, the bytes of the weight take the time and not the arithmetic. */
const FEW_ROWS = 64;
/** So many columns give every multiprocessor of a large GPU a workgroup of a wide shape. */
const WIDE_FROM = 2048;
const WIDE: FewRowsShape = { lanes: 1, rowGroups: 4, columnGroups: 2, rows: 9, columns: 8 };
const NARROW: FewRowsShape = { lanes: 1, rowGroups: 4, columnGroups: 1, rows: 9, columns: 8 };
const WIDE_NN: FewRowsShape = { lanes: 2, rowGroups: 4, columnGroups: 1, rows: 9, columns: 8 };
const NARROW_NN: StagedRowsShape = { gridRows: 4, gridColumns: 1, rows: 9, columns: 8, depth: 64, ahead: 2 };

/**
 * For products with few rows (nt, nn): a workgroup has up to 36 rows of a few columns, so that a weight is fetched once. Each
 * thread adds its outputs over its slice of k straight from memory, 16 bytes at a time and without a barrier, so that
 * many fetches are under way at once; then the slices are added in one fixed order.
 */
export function fewRowsVariants(layout: 'nt' | 'nn', bias: boolean): TiledVariant[] {
  const [wide, narrow] =
    layout === 'nt'
      ? [fewRowsVariant('nt', bias, WIDE), fewRowsVariant('nt', bias, NARROW)]
      : [fewRowsVariant('nn', bias, WIDE_NN), stagedRowsVariant(bias, NARROW_NN)];
  const few = (variant: TiledVariant, leastColumns: number): TiledVariant => ({
    ...variant,
    fits: (params) => params.M <= FEW_ROWS && params.N >= leastColumns && variant.fits(params),
  });
  return [few(wide, WIDE_FROM), few(narrow, 0)];
}

function isAligned(layout: 'nt' | 'nn', { N, K, aOffset, lda, bOffset, ldb }: Params): boolean {
  const whole = layout === 'nt' ? K : N;
  return [aOffset, lda, bOffset, ldb, whole].every((n) => n % 4 === 0) && K > 0;
}

/** The variant of one shape, which fits wherever operands are aligned. */
export function fewRowsVariant(layout: 'nt' | 'nn', bias: boolean, shape: FewRowsShape): TiledVariant {
  const { lanes, rowGroups, columnGroups, rows, columns } = shape;
  const nt = layout === 'nt';
  const M = rowGroups * rows;
  const N = columnGroups * lanes * columns;
  const laneSlices = 32 / lanes;
  const groupSlices = 8 / (rowGroups * columnGroups);
  const slices = laneSlices * groupSlices;
  const cells = THREADS / slices;
  /** Each output of a round is added by one thread. */
  const quads = Math.min(MOST_QUADS, THREADS / 4 / cells);
  const sums = range(rows).flatMap((r) => range(columns).map((c) => `s${r}_${c}`));
  const rounds = Math.ceil(sums.length / (4 * quads));
  const parts = ['x', 'y', 'z', 'w'];
  const fetchB = nt
    ? range(columns).map((c) => `let y${c} = b[b${c} + k4];`)
    : range(columns / 4).flatMap((q) =>
        range(4).map((j) => `let y${q}_${j} = b[b${q} + min(4u * k4 + ${j}u, p.K - 1u) * ldb4];`),
      );
  const weight = (c: number, j: number) => (nt ? `y${c}.${parts[j]}` : `y${Math.floor(c / 4)}_${j}.${parts[c % 4]}`);
  return {
    name: `few-${M}x${N}`,
    vectors: ['a', 'b'],
    workgroupSize: [THREADS, 1, 1],
    workgroups: (params) => [Math.ceil(params.N / N), Math.ceil(params.M / M), 1],
    fits: (params) => isAligned(layout, params),
    wgsl: `
var<workgroup> handed: array<vec4f, ${quads * THREADS}>;
${storeWgsl(bias)}
fn tile(group: vec3u, local: vec3u, index: u32) {
  let neighbourhood = index / 32u;
  let m0 = group.y * ${M}u + neighbourhood / ${groupSlices}u % ${rowGroups}u * ${rows}u;
  let n0 = group.x * ${N}u + (neighbourhood / ${groupSlices * rowGroups}u * ${lanes}u + index % ${lanes}u) * ${columns}u;
  let slice = neighbourhood % ${groupSlices}u * ${laneSlices}u + index % 32u / ${lanes}u;
  ${range(rows)
    .map((r) => `let a${r} = (p.aOffset + min(m0 + ${r}u, p.M - 1u) * p.lda) / 4u;`)
    .join('\n  ')}
  ${
    nt
      ? range(columns)
          .map((c) => `let b${c} = (p.bOffset + min(n0 + ${c}u, p.N - 1u) * p.ldb) / 4u;`)
          .join('\n  ')
      : `let ldb4 = p.ldb / 4u;
  ${range(columns / 4)
    .map((q) => `let b${q} = (p.bOffset + min(n0 + ${4 * q}u, p.N - 4u)) / 4u;`)
    .join('\n  ')}`
  }
  ${sums.map((s) => `var ${s} = 0.0;`).join(' ')}
  for (var k4 = slice; 4u * k4 < p.K; k4 += ${slices}u) {
    ${nt ? '' : 'let inside = vec4u(4u * k4) + vec4u(0u, 1u, 2u, 3u) < vec4u(p.K);'}
    ${range(rows)
      .map((r) => (nt ? `let x${r} = a[a${r} + k4];` : `let x${r} = select(vec4f(), a[a${r} + k4], inside);`))
      .join(' ')}
    ${fetchB.join(' ')}
    ${range(rows)
      .map((r) =>
        range(columns)
          .map((c) => parts.map((part, j) => `s${r}_${c} += x${r}.${part} * ${weight(c, j)};`).join(' '))
          .join(' '),
      )
      .join('\n    ')}
  }
  // A thread that adds starts at its own slice, so that the neighbours read different banks.
  let cell = index / ${4 * quads}u;
  let first = index / 4u;
  let neighbours = cell / ${lanes}u;
  let begin = index % ${4 * quads}u / 4u * ${THREADS}u + neighbours * ${32 * groupSlices}u + cell % ${lanes}u;
  let m = group.y * ${M}u + neighbours % ${rowGroups}u * ${rows}u;
  let n = group.x * ${N}u + (neighbours / ${rowGroups}u * ${lanes}u + cell % ${lanes}u) * ${columns}u;
  ${range(rounds)
    .map((round) => {
      const at = (v: number, j: number) => sums[4 * (round * quads + v) + j] ?? '0.0';
      return `${round > 0 ? 'workgroupBarrier();' : ''}
  ${range(quads)
    .map((v) => `handed[${v * THREADS}u + index] = vec4f(${[0, 1, 2, 3].map((j) => at(v, j)).join(', ')});`)
    .join('\n  ')}
  workgroupBarrier();
  if (cell < ${cells}u && index % ${4 * quads}u < ${sums.length - round * 4 * quads}u) {
    var total = 0.0;
    for (var other = 0u; other < ${slices}u; other++) {
      total += handed[begin + (first + other) % ${slices}u * ${lanes}u][index % 4u];
    }
    let output = index % ${4 * quads}u + ${round * 4 * quads}u;
    store(m + output / ${columns}u, n + output % ${columns}u, total);
  }`;
    })
    .join('\n  ')}
}`,
  };
}
