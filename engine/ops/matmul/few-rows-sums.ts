/** Threads of a workgroup. */
export const THREADS = 256;
/** Threads that run together. */
export const WARP = 32;
/** Sums that a thread hands over between two barriers, in vec4s: odd, so that neighbours write different banks. */
const QUADS = 3;
/** vec4s of workgroup memory that handing over takes. */
export const HANDED = QUADS * THREADS;

export const PARTS = ['x', 'y', 'z', 'w'] as const;

export const range = (n: number) => Array.from({ length: n }, (_, i) => i);

export interface Lanes {
  /** How 32 neighbouring threads share the outputs; those left over, and the eight such neighbourhoods, are slices of k. */
  readonly rowLanes: number;
  readonly columnLanes: number;
  /** Outputs of a thread. */
  readonly rows: number;
  readonly columns: number;
}

/** Slices of k within 32 neighbouring threads, and of the whole workgroup. */
export function slicesOf({ rowLanes, columnLanes }: Lanes): { readonly laneSlices: number; readonly slices: number } {
  const laneSlices = WARP / rowLanes / columnLanes;
  return { laneSlices, slices: (laneSlices * THREADS) / WARP };
}

/** The names of a thread's sums, row by row. */
export function sumNames({ rows, columns }: Lanes): readonly string[] {
  return range(rows).flatMap((r) => range(columns).map((c) => `s${r}_${c}`));
}

/** WGSL that adds four products of k to each sum: rows in x0…, the weight of a column c for the j-th k as `weight` says. */
export function addProducts(
  { rows, columns }: Lanes,
  weight: (column: number, j: number) => string,
  indent: string,
): string {
  return range(rows)
    .flatMap((r) =>
      range(columns).map((c) => PARTS.map((part, j) => `s${r}_${c} += x${r}.${part} * ${weight(c, j)};`).join(' ')),
    )
    .join(`\n${indent}`);
}

/**
 * WGSL that adds the slices' sums in order, QUADS vec4s a thread between two barriers, through the first HANDED vec4s of the
 * workgroup's array `memory`, and stores each with `store`, WGSL of `cell` (a row lane and a column lane), `sum` (a place
 * among sumNames) and `total`. `index` is the thread.
 */
export function handOver(lanes: Lanes, memory: string, store: string): string {
  const { laneSlices, slices } = slicesOf(lanes);
  const sums = sumNames(lanes);
  const quads = Math.ceil(sums.length / 4);
  const cells = lanes.rowLanes * lanes.columnLanes;
  return range(Math.ceil(quads / QUADS))
    .map((round) => {
      const first = round * QUADS;
      const count = Math.min(QUADS, quads - first);
      const four = (v: number) => range(4).map((j) => sums[4 * (first + v) + j] ?? '0.0');
      return `${round > 0 ? 'workgroupBarrier();' : ''}
  ${range(count)
    .map((v) => `${memory}[index * ${count}u + ${v}u] = vec4f(${four(v).join(', ')});`)
    .join('\n  ')}
  workgroupBarrier();
  for (var at = index; at < ${4 * count * cells}u; at += ${THREADS}u) {
    let cell = at / ${4 * count}u;
    let output = at % ${4 * count}u;
    let start = cell * ${laneSlices * count}u + output / 4u;
    var total = 0.0;
    for (var other = 0u; other < ${slices}u; other++) {
      total += ${memory}[start + (other / ${laneSlices}u * ${WARP}u + other % ${laneSlices}u) * ${count}u][output % 4u];
    }
    let sum = output + ${4 * first}u;
    if (sum < ${sums.length}u) {
      ${store}
    }
  }`;
    })
    .join('\n  ');
}
