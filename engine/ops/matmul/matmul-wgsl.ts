import { columnSumWgsl, storeTile, storeWgsl } from './matmul-store.ts';

/** Which operands are transposed: C = A·Bᵀ, A·B or Aᵀ·B. */
export type MatmulLayout = 'nt' | 'nn' | 'tn';

/** Outputs of one thread of the barrier-free variant. */
export const TILE_ROWS = 4;
export const TILE_COLUMNS = 8;

const range = (n: number) => Array.from({ length: n }, (_, i) => i);

/**
 * A thread holds a tile of outputs in separate variables (SwiftShader keeps arrays in memory) and reads each element once per
 * tile. Its columns lie a whole column grid apart, so that neighbouring threads read and write neighbouring elements. Rows
 * and columns past the edge repeat the last one and are not stored.
 */
export function matmulWgsl(layout: MatmulLayout, bias: boolean, sums = false, store: string = storeWgsl(bias)): string {
  const rows = range(TILE_ROWS);
  const columns = range(TILE_COLUMNS);
  const aStart = (r: number) => {
    const row = `min(m0 + ${r}u, p.M - 1u)`;
    return layout === 'tn' ? `p.aOffset + ${row}` : `p.aOffset + ${row} * p.lda`;
  };
  const bStart = (j: number) => {
    const column = `min(n0 + ${j}u * stride, p.N - 1u)`;
    return layout === 'nt' ? `p.bOffset + ${column} * p.ldb` : `p.bOffset + ${column}`;
  };
  const aStep = layout === 'tn' ? 'p.lda' : '1u';
  const bStep = layout === 'nt' ? '1u' : 'p.ldb';
  return `${store}${sums ? columnSumWgsl('a[at]') : ''}
fn kernel(i: u32) {
  let stride = (p.N + ${TILE_COLUMNS - 1}u) / ${TILE_COLUMNS}u;
  let m0 = i / stride * ${TILE_ROWS}u;
  let n0 = i % stride;
  ${rows.map((r) => `let a${r} = ${aStart(r)};`).join('\n  ')}
  ${columns.map((j) => `let b${j} = ${bStart(j)};`).join('\n  ')}
  ${rows.map((r) => columns.map((j) => `var s${r}_${j} = 0.0;`).join(' ')).join('\n  ')}
  var ka = 0u;
  var kb = 0u;
  for (var k = 0u; k < p.K; k++) {
    ${rows.map((r) => `let x${r} = a[a${r} + ka];`).join(' ')}
    ${columns.map((j) => `let y${j} = b[b${j} + kb];`).join(' ')}
    ${rows.map((r) => columns.map((j) => `s${r}_${j} += x${r} * y${j};`).join(' ')).join('\n    ')}
    ka += ${aStep};
    kb += ${bStep};
  }
  ${storeTile(
    rows.flatMap((r) => columns.map((j) => `s${r}_${j}`)),
    `m0 + at / ${TILE_COLUMNS}u`,
    `n0 + at % ${TILE_COLUMNS}u * stride`,
  )}
  ${sums ? `if (n0 == 0u) { for (var r = 0u; r < ${TILE_ROWS}u; r++) { sumColumn(m0 + r); } }` : ''}
}`;
}
