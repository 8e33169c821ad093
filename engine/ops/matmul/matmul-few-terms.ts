import type { Params, TiledVariant } from '../kernel.ts';
import { range } from './few-rows-sums.ts';

/** Terms of a sum, at most: all are staged at once. */
const TERMS = 36;
const THREADS = 256;
/** Outputs of a workgroup at a time; a thread has eight rows of four. */
const ROWS = 64;
const COLUMNS = 128;
const ROWS_EACH = 8;
/** Workgroups at once: the multiprocessors of an H200. */
const WORKGROUPS = 132;

const A_QUADS = (TERMS * ROWS) / 4;
const B_QUADS = (TERMS * COLUMNS) / 4;
const A_STRIDE = ROWS / 4;
const B_STRIDE = COLUMNS / 4;
const ACROSS_ROWS = ROWS / ROWS_EACH;

/** Blocks of rows of a workgroup, so that each multiprocessor has one workgroup. */
function passesOf({ M, N }: Params): number {
  return Math.ceil((Math.ceil(M / ROWS) * Math.ceil(N / COLUMNS)) / WORKGROUPS);
}

/**
 * C = Aᵀ·B with few terms (a weight's gradient over few tokens), and the sums of A's columns if `sums`. A workgroup stages all
 * terms of a block of columns of b once and makes blocks of rows in turn: the terms of the next are on their way, and the
 * results of the last go, while one is added.
 */
export function fewTermsVariant(sums: boolean): TiledVariant {
  const e = (i: number) => `(index + ${i * THREADS}u)`;
  const pieces = (count: number) => range(Math.ceil(count / THREADS));
  const guard = (i: number, count: number, body: string) =>
    (i + 1) * THREADS <= count ? body : `if (index < ${count - i * THREADS}u) { ${body} }`;
  const fetch = (first: string) =>
    pieces(A_QUADS)
      .map((i) => guard(i, A_QUADS, `a${i} = fetchA(${first} + ${e(i)} % ${A_STRIDE}u * 4u, ${e(i)} / ${A_STRIDE}u);`))
      .join('\n    ');
  const stage = pieces(A_QUADS)
    .map((i) => guard(i, A_QUADS, `staged[${e(i)}] = a${i};`))
    .join('\n    ');
  const rowQuads = range(ROWS_EACH / 4);
  return {
    name: `terms-${ROWS}x${COLUMNS}x${TERMS}`,
    vectors: ['a', 'b', 'c'],
    workgroupSize: [THREADS, 1, 1],
    workgroups: (params) => [Math.ceil(params.N / COLUMNS), Math.ceil(params.M / ROWS / passesOf(params)), 1],
    fits: (params) =>
      ['aOffset', 'lda', 'bOffset', 'ldb', 'cOffset', 'ldc', 'M', 'N'].every((name) => params[name] % 4 === 0) &&
      params.K > 0 &&
      params.K <= TERMS,
    wgsl: `
var<workgroup> staged: array<vec4f, ${A_QUADS + B_QUADS}>;
fn fetchA(m: u32, k: u32) -> vec4f {
  return select(vec4f(), a[(p.aOffset + min(k, p.K - 1u) * p.lda + min(m, p.M - 4u)) / 4u], vec4<bool>(k < p.K));
}
fn fetchB(n: u32, k: u32) -> vec4f {
  return select(vec4f(), b[(p.bOffset + min(k, p.K - 1u) * p.ldb + min(n, p.N - 4u)) / 4u], vec4<bool>(k < p.K));
}
fn store4(m: u32, n: u32, sum: vec4f) {
  if (m < p.M && n < p.N) {
    let at = (p.cOffset + m * p.ldc + n) / 4u;
    var value = sum;
    if (p.accumulate != 0u) { value += c[at]; }
    c[at] = value;
  }
}
fn tile(group: vec3u, local: vec3u, index: u32) {
  let tiles = (p.M + ${ROWS - 1}u) / ${ROWS}u * ((p.N + ${COLUMNS - 1}u) / ${COLUMNS}u);
  let height = (tiles + ${WORKGROUPS - 1}u) / ${WORKGROUPS}u * ${ROWS}u;
  let n0 = group.x * ${COLUMNS}u;
  var m0 = group.y * height;
  let end = min(m0 + height, p.M);
  // The 32 threads that run together have 4x8 blocks of outputs: they read the fewest different vec4s.
  let row = index / 128u * 4u + index % 32u / 8u;
  let column = index / 32u % 4u * 8u + index % 8u;
  ${pieces(A_QUADS)
    .map((i) => `var a${i} = vec4f();`)
    .join(' ')}
  ${fetch('m0')}
  ${pieces(B_QUADS)
    .map((i) =>
      guard(
        i,
        B_QUADS,
        `staged[${A_QUADS}u + ${e(i)}] = fetchB(n0 + ${e(i)} % ${B_STRIDE}u * 4u, ${e(i)} / ${B_STRIDE}u);`,
      ),
    )
    .join('\n  ')}
  ${stage}
  workgroupBarrier();
  loop {
    if (m0 + ${ROWS}u < end) {
    ${fetch(`m0 + ${ROWS}u`)}
    }
    ${range(ROWS_EACH)
      .map((r) => `var s${r} = vec4f();`)
      .join(' ')}
    for (var k = 0u; k < ${TERMS}u; k++) {
      let x = k * ${A_STRIDE}u + row;
      let y = staged[${A_QUADS}u + k * ${B_STRIDE}u + column];
      ${rowQuads.map((q) => `let x${q} = staged[x + ${q * ACROSS_ROWS}u];`).join(' ')}
      ${range(ROWS_EACH)
        .map((r) => `s${r} += x${Math.floor(r / 4)}[${r % 4}] * y;`)
        .join(' ')}
    }
    ${range(ROWS_EACH)
      .map(
        (r) => `store4(m0 + ${Math.floor(r / 4) * ACROSS_ROWS * 4}u + row * 4u + ${r % 4}u, n0 + column * 4u, s${r});`,
      )
      .join('\n    ')}
    ${
      sums
        ? `if (group.x == 0u && index < ${ROWS}u && m0 + index < p.M) {
      var sum = 0.0;
      for (var k = 0u; k < p.K; k++) { sum += staged[k * ${A_STRIDE}u + index / 4u][index % 4u]; }
      let to = p.sumsOffset + m0 + index;
      if (p.sumsAccumulate != 0u) { sum += sums[to]; }
      sums[to] = sum;
    }`
        : ''
    }
    m0 += ${ROWS}u;
    if (m0 >= end) { break; }
    workgroupBarrier();
    ${stage}
    workgroupBarrier();
  }
}`,
  };
}
