import type { Params, TiledVariant } from '../kernel.ts';
import { blockedVariants } from './matmul-blocked.ts';
import { fewRowsVariants } from './matmul-few-rows.ts';
import { columnSumWgsl, storeTile, storeWgsl } from './matmul-store.ts';
import type { MatmulLayout } from './matmul-wgsl.ts';

/** Outputs of a workgroup of the square path, each way, and products added between two barriers. */
const SQUARE = 64;
const DEPTH = 16;
/** Elements between rows of a staged tile: four more than needed, against bank conflicts. */
const STAGED = SQUARE + 4;

/** Up to so many rows the few-rows path is taken. */
const FEW_ROWS = 64;
/** Outputs of a workgroup of the few-rows path: 8 rows, 32 columns as 8 positions of 4. */
const SLIM_ROWS = 8;
const SLIM_COLUMNS = 32;
/** A workgroup of the few-rows path splits the sum over k into so many slices. */
const SLICES = 32;
/** Sums that a thread hands over between two barriers: as many as fit the memory that the square path needs anyway. */
const EXCHANGED = 8;

/** Below so many multiplications a real GPU finishes the barrier-free variant as soon. */
const WORTH_TILING = 1 << 15;

const range = (n: number) => Array.from({ length: n }, (_, i) => i);

/**
 * For real GPUs. Square path: 64x64 outputs a workgroup, 4x4 a thread, operands staged in workgroup memory, the next tile
 * fetched into registers meanwhile. Few-rows path (nt, nn, up to 64 rows, where the weight's bytes and not the arithmetic
 * take the time): 8x32 outputs a workgroup so that many workgroups read the weight at once, each thread 8x4 outputs over one
 * slice of k, slices added at the end in a fixed butterfly.
 */
export function matmulTiled(layout: MatmulLayout, bias: boolean, sums = false): TiledVariant {
  const slim = layout !== 'tn';
  const fewRows = (params: Params) => slim && params.M <= FEW_ROWS;
  const groups = (params: Params): readonly [number, number, number] =>
    fewRows(params)
      ? [Math.ceil(params.M / SLIM_ROWS), Math.ceil(params.N / SLIM_COLUMNS), 1]
      : [Math.ceil(params.N / SQUARE), Math.ceil(params.M / SQUARE), 1];
  return {
    workgroupSize: [256, 1, 1],
    workgroups: groups,
    fits: (params) => params.M * params.N * params.K >= WORTH_TILING && groups(params).every((n) => n <= 65_535),
    special: [...(layout === 'tn' ? [] : fewRowsVariants(layout, bias)), ...blockedVariants(layout, bias, sums)],
    wgsl: `
var<workgroup> staged: array<f32, ${2 * DEPTH * STAGED}>;
${storeWgsl(bias)}${sums ? columnSumWgsl('a[at]') : ''}
${squareWgsl(layout)}
${slim ? slimWgsl(layout) : ''}
fn tile(group: vec3u, local: vec3u, index: u32) {
  ${slim ? `if (p.M <= ${FEW_ROWS}u) { slim(group, index); return; }` : ''}
  square(group, index);
  ${sums ? `if (group.x == 0u && index < ${SQUARE}u) { sumColumn(group.y * ${SQUARE}u + index); }` : ''}
}`,
  };
}

function squareWgsl(layout: MatmulLayout): string {
  const four = range(4);
  /** A thread fetches four elements of a tile, along the operand's own rows, which are contiguous. */
  const fetch = (operand: 'a' | 'b', fetched: string, alongK: boolean) => {
    const [first, edge] = operand === 'a' ? ['m0', 'p.M'] : ['n0', 'p.N'];
    const k = alongK ? `k0 + index % ${DEPTH}u` : `k0 + index / ${SQUARE}u + i * 4u`;
    const outer = alongK ? `${first} + index / ${DEPTH}u + i * 16u` : `${first} + index % ${SQUARE}u`;
    const at = alongK ? `outer * p.ld${operand} + min(k, p.K - 1u)` : `min(k, p.K - 1u) * p.ld${operand} + outer`;
    return `for (var i = 0u; i < 4u; i++) {
      let k = ${k};
      let outer = min(${outer}, ${edge} - 1u);
      ${fetched}[i] = select(0.0, ${operand}[p.${operand}Offset + ${at}], k < p.K);
    }`;
  };
  const stage = (fetched: string, base: number, alongK: boolean) => {
    const at = alongK
      ? `index % ${DEPTH}u * ${STAGED}u + index / ${DEPTH}u + i * 16u`
      : `(index / ${SQUARE}u + i * 4u) * ${STAGED}u + index % ${SQUARE}u`;
    return `for (var i = 0u; i < 4u; i++) { staged[${base}u + ${at}] = ${fetched}[i]; }`;
  };
  const aAlongK = layout !== 'tn';
  const bAlongK = layout === 'nt';
  const bBase = DEPTH * STAGED;
  return `
fn square(group: vec3u, index: u32) {
  let n0 = group.x * ${SQUARE}u;
  let m0 = group.y * ${SQUARE}u;
  let row = index / 16u * 4u;
  let column = index % 16u * 4u;
  ${four.map((r) => four.map((j) => `var s${r}_${j} = 0.0;`).join(' ')).join('\n  ')}
  var f: array<f32, 4>;
  var g: array<f32, 4>;
  {
    let k0 = 0u;
    ${fetch('a', 'f', aAlongK)}
    ${fetch('b', 'g', bAlongK)}
  }
  for (var k0 = ${DEPTH}u; ; k0 += ${DEPTH}u) {
    ${stage('f', 0, aAlongK)}
    ${stage('g', bBase, bAlongK)}
    workgroupBarrier();
    let last = k0 >= p.K;
    if (!last) {
    ${fetch('a', 'f', aAlongK)}
    ${fetch('b', 'g', bAlongK)}
    }
    for (var k = 0u; k < ${DEPTH}u; k++) {
      let x = k * ${STAGED}u + row;
      let y = ${bBase}u + k * ${STAGED}u + column;
      ${four.map((r) => `let x${r} = staged[x + ${r}u]; let y${r} = staged[y + ${r}u];`).join(' ')}
      ${four.map((r) => four.map((j) => `s${r}_${j} += x${r} * y${j};`).join(' ')).join('\n      ')}
    }
    if (last) { break; }
    workgroupBarrier();
  }
  ${storeTile(
    four.flatMap((r) => four.map((j) => `s${r}_${j}`)),
    'm0 + row + at / 4u',
    'n0 + column + at % 4u',
  )}
}`;
}

/** Neighbouring threads take neighbouring slices where rows of b run along k, neighbouring columns where they run along n. */
function slimWgsl(layout: MatmulLayout): string {
  const rows = range(SLIM_ROWS);
  const columns = range(4);
  const nt = layout === 'nt';
  const columnOf = (j: number | string) => (nt ? `n0 + position * 4u + ${j}` : `n0 + position + ${j} * 8u`);
  const sliceStride = nt ? 1 : 8;
  const exchange = [16, 8, 4, 2, 1].flatMap((half) => {
    const count = Math.min(half, EXCHANGED);
    return range(half / count).map((round) => {
      const kept = `${round * count}u + i`;
      const sent = `${half + round * count}u + i`;
      return `
  {
    let upper = (slice & ${half}u) != 0u;
    let other = index ^ ${half * sliceStride}u;
    for (var i = 0u; i < ${count}u; i++) { staged[i * 256u + index] = select(sums[${sent}], sums[${kept}], upper); }
    workgroupBarrier();
    for (var i = 0u; i < ${count}u; i++) {
      sums[${kept}] = select(sums[${kept}], sums[${sent}], upper) + staged[i * 256u + other];
    }
    workgroupBarrier();
  }`;
    });
  });
  return `
fn slim(group: vec3u, index: u32) {
  let m0 = group.x * ${SLIM_ROWS}u;
  let n0 = group.y * ${SLIM_COLUMNS}u;
  let slice = ${nt ? 'index % 32u' : 'index / 8u'};
  let position = ${nt ? 'index / 32u' : 'index % 8u'};
  ${rows.map((r) => `let a${r} = p.aOffset + min(m0 + ${r}u, p.M - 1u) * p.lda;`).join('\n  ')}
  ${columns.map((j) => `let b${j} = p.bOffset + min(${columnOf(`${j}u`)}, p.N - 1u)${nt ? ' * p.ldb' : ''};`).join('\n  ')}
  ${rows.map((r) => columns.map((j) => `var v${r * 4 + j} = 0.0;`).join(' ')).join('\n  ')}
  for (var k = slice; k < p.K; k += ${SLICES}u) {
    let kb = k${nt ? '' : ' * p.ldb'};
    ${rows.map((r) => `let x${r} = a[a${r} + k];`).join(' ')}
    ${columns.map((j) => `let y${j} = b[b${j} + kb];`).join(' ')}
    ${rows.map((r) => columns.map((j) => `v${r * 4 + j} += x${r} * y${j};`).join(' ')).join('\n    ')}
  }
  var sums = array<f32, 32>(${range(32)
    .map((i) => `v${i}`)
    .join(', ')});
  // Each exchange halves the outputs of a thread and doubles the slices in their sums: 32 outputs, then 1, that of its slice.
  ${exchange.join('')}
  store(m0 + slice / 4u, ${columnOf('slice % 4u')}, sums[0]);
}`;
}
