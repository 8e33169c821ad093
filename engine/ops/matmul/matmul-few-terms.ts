import type { Params, TiledVariant } from '../kernel.ts';
import { range } from './few-rows-sums.ts';
import { type ProductWords, plainWords } from './product-words.ts';

/** Terms of a sum, at most: all are staged at once. */
const TERMS = 36;
const THREADS = 256;
/** Workgroups at once: the multiprocessors of an H200. */
const WORKGROUPS = 132;

/** Outputs of a workgroup at a time. */
export interface TermsShape {
  /** 32, 64 or 128; a thread has four. */
  readonly columns: number;
  /** Rows of a thread: four or eight. */
  readonly rowsEach: number;
}

const WHOLE: TermsShape = { columns: 128, rowsEach: 8 };

/** Rows of a workgroup at a time: 32 neighbouring threads have 4x8 blocks of outputs. */
const rowsOf = ({ columns, rowsEach }: TermsShape) => (THREADS / (columns / 4)) * rowsEach;

/** Blocks of rows of a workgroup, so that each multiprocessor has one workgroup. */
function passesOf(shape: TermsShape, { M, N }: Pick<Params, 'M' | 'N'>): number {
  return Math.ceil((Math.ceil(M / rowsOf(shape)) * Math.ceil(N / shape.columns)) / WORKGROUPS);
}

/** Workgroups across and down. */
export function termsGrid(shape: TermsShape, { M, N }: Pick<Params, 'M' | 'N'>): readonly [number, number] {
  return [Math.ceil(N / shape.columns), Math.ceil(M / rowsOf(shape) / passesOf(shape, { M, N }))];
}

/**
 * C = Aᵀ·B with few terms (a weight's gradient over few tokens), and the sums of A's columns if `sums`. A workgroup stages all
 * terms of a block of columns of b once and makes blocks of rows in turn: the terms of the next are on their way, and the
 * results of the last go, while one is added.
 */
export function fewTermsVariant(sums: boolean): TiledVariant {
  const { quads, functions, body } = termsCode(WHOLE, sums, plainWords);
  return {
    name: `terms-${rowsOf(WHOLE)}x${WHOLE.columns}x${TERMS}`,
    vectors: ['a', 'b', 'c'],
    workgroupSize: [THREADS, 1, 1],
    workgroups: ({ M, N }) => [...termsGrid(WHOLE, { M, N }), 1],
    fits: (params) =>
      ['aOffset', 'lda', 'bOffset', 'ldb', 'cOffset', 'ldc', 'M', 'N'].every((name) => params[name] % 4 === 0) &&
      params.K > 0 &&
      params.K <= TERMS,
    wgsl: `
var<workgroup> staged: array<vec4f, ${quads}>;${functions}
fn tile(group: vec3u, local: vec3u, index: u32) {${body}
}`,
  };
}

/** WGSL of that product: what it declares, over `quads` vec4s of `staged`, and the body of a function of `group` and `index`. */
export function termsCode(shape: TermsShape, sums: boolean, p: ProductWords) {
  const { columns, rowsEach } = shape;
  const rows = rowsOf(shape);
  const aQuads = (TERMS * rows) / 4;
  const bQuads = (TERMS * columns) / 4;
  const aStride = rows / 4;
  const bStride = columns / 4;
  const acrossRows = rows / rowsEach;
  const e = (i: number) => `(index + ${i * THREADS}u)`;
  const pieces = (count: number) => range(Math.ceil(count / THREADS));
  const guard = (i: number, count: number, body: string) =>
    (i + 1) * THREADS <= count ? body : `if (index < ${count - i * THREADS}u) { ${body} }`;
  const fetch = (first: string) =>
    pieces(aQuads)
      .map((i) => guard(i, aQuads, `a${i} = fetchA(${first} + ${e(i)} % ${aStride}u * 4u, ${e(i)} / ${aStride}u);`))
      .join('\n    ');
  const stage = pieces(aQuads)
    .map((i) => guard(i, aQuads, `staged[${e(i)}] = a${i};`))
    .join('\n    ');
  const rowQuads = range(rowsEach / 4);
  const functions = `
fn fetchA(m: u32, k: u32) -> vec4f {
  return select(vec4f(), ${p.a}[(${p.aOffset} + min(k, ${p.K} - 1u) * ${p.lda} + min(m, ${p.M} - 4u)) / 4u], vec4<bool>(k < ${p.K}));
}
fn fetchB(n: u32, k: u32) -> vec4f {
  return select(vec4f(), ${p.b}[(${p.bOffset} + min(k, ${p.K} - 1u) * ${p.ldb} + min(n, ${p.N} - 4u)) / 4u], vec4<bool>(k < ${p.K}));
}
fn store4(m: u32, n: u32, sum: vec4f) {
  if (m < ${p.M} && n < ${p.N}) {
    let at = (${p.cOffset} + m * ${p.ldc} + n) / 4u;
    var value = sum;
    if (${p.accumulate} != 0u) { value += ${p.c}[at]; }
    ${p.c}[at] = value;
  }
}`;
  const body = `
  let tiles = (${p.M} + ${rows - 1}u) / ${rows}u * ((${p.N} + ${columns - 1}u) / ${columns}u);
  let height = (tiles + ${WORKGROUPS - 1}u) / ${WORKGROUPS}u * ${rows}u;
  let n0 = group.x * ${columns}u;
  var m0 = group.y * height;
  let end = min(m0 + height, ${p.M});
  // The 32 threads that run together have 4x8 blocks of outputs: they read the fewest different vec4s.
  let row = index / ${columns}u * 4u + index % 32u / 8u;
  let column = index / 32u % ${columns / 32}u * 8u + index % 8u;
  ${pieces(aQuads)
    .map((i) => `var a${i} = vec4f();`)
    .join(' ')}
  ${fetch('m0')}
  ${pieces(bQuads)
    .map((i) =>
      guard(
        i,
        bQuads,
        `staged[${aQuads}u + ${e(i)}] = fetchB(n0 + ${e(i)} % ${bStride}u * 4u, ${e(i)} / ${bStride}u);`,
      ),
    )
    .join('\n  ')}
  ${stage}
  workgroupBarrier();
  loop {
    if (m0 + ${rows}u < end) {
    ${fetch(`m0 + ${rows}u`)}
    }
    ${range(rowsEach)
      .map((r) => `var s${r} = vec4f();`)
      .join(' ')}
    for (var k = 0u; k < ${TERMS}u; k++) {
      let x = k * ${aStride}u + row;
      let y = staged[${aQuads}u + k * ${bStride}u + column];
      ${rowQuads.map((q) => `let x${q} = staged[x + ${q * acrossRows}u];`).join(' ')}
      ${range(rowsEach)
        .map((r) => `s${r} += x${Math.floor(r / 4)}[${r % 4}] * y;`)
        .join(' ')}
    }
    ${range(rowsEach)
      .map(
        (r) => `store4(m0 + ${Math.floor(r / 4) * acrossRows * 4}u + row * 4u + ${r % 4}u, n0 + column * 4u, s${r});`,
      )
      .join('\n    ')}
    ${
      sums
        ? `if (group.x == 0u && index < ${rows}u && m0 + index < ${p.M}) {
      var sum = 0.0;
      for (var k = 0u; k < ${p.K}; k++) { sum += staged[k * ${aStride}u + index / 4u][index % 4u]; }
      let to = p.sumsOffset + m0 + index;
      if (p.sumsAccumulate != 0u) { sum += sums[to]; }
      sums[to] = sum;
    }`
        : ''
    }
    m0 += ${rows}u;
    if (m0 >= end) { break; }
    workgroupBarrier();
    ${stage}
    workgroupBarrier();
  }`;
  return { quads: aQuads + bQuads, functions, body };
}
