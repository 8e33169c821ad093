import type { Params, TiledVariant } from '../kernel.ts';
import { fewTermsVariant } from './matmul-few-terms.ts';
import { columnSumWgsl, storeTile, storeWgsl } from './matmul-store.ts';
import type { MatmulLayout } from './matmul-wgsl.ts';

const THREADS = 256;
/** Elements between rows of a staged tile, beyond its width: against bank conflicts, and whole vec4s. */
const PADDING = 4;

const range = (n: number) => Array.from({ length: n }, (_, i) => i);

/** A workgroup's tile of outputs, the products added between two barriers, and a thread's outputs. */
export interface BlockShape {
  readonly M: number;
  readonly N: number;
  readonly K: number;
  readonly rows: number;
  readonly columns: number;
  /** Whether the 32 threads that run together have a block of 4x8 threads' outputs, rather than a row of them. */
  readonly warps?: boolean;
  /** Whether C's rows are stored 16 bytes at a time, where they are aligned for it (tn always). */
  readonly wholeC?: boolean;
  /** In how many parts k is cut, each a workgroup's own: C is then those sums, a part after the other (nn, `wholeC`). */
  readonly parts?: number;
}

const LARGE: BlockShape = { M: 128, N: 128, K: 16, rows: 8, columns: 8, warps: true, wholeC: true };
/** For results of few tiles: of half as many rows each, so that more multiprocessors have one. */
const MEDIUM: BlockShape = { ...LARGE, M: 64, K: 32, rows: 4 };
const SOME_TERMS: BlockShape = { M: 64, N: 128, K: 36, rows: 8, columns: 4 };

/** Sums of up to so many products are bound by the bytes of the result. */
const FEW = 64;

/**
 * For operands that can be read 16 bytes at a time: large products, 8x8 outputs a thread, their rows stored 16 bytes at a
 * time where they allow it; and sums of few products (tn: a weight's gradient over few tokens), where all terms are staged at
 * once and the result is written once.
 */
export function blockedVariants(layout: MatmulLayout, bias: boolean, sums = false): TiledVariant[] {
  const large = (shape: BlockShape): TiledVariant => {
    const variant = blockedVariant(layout, bias, shape, sums);
    return {
      ...variant,
      fits: (params) => params.M >= 128 && params.N >= 128 && params.K > FEW && variant.fits(params),
    };
  };
  const medium = large(MEDIUM);
  const whole = [{ ...medium, fits: (params: Params) => isDeep(params) && medium.fits(params) }, large(LARGE)];
  if (layout === 'nt') return [...whole, large({ ...LARGE, wholeC: false })];
  if (layout === 'nn') return whole;
  const terms = fewTermsVariant(sums);
  const few = blockedVariant(layout, bias, SOME_TERMS, sums);
  const isTall = (params: Params) => params.M >= 64;
  return [
    ...(sums ? [] : whole),
    { ...terms, fits: (params) => isTall(params) && terms.fits(params) },
    { ...few, fits: (params) => params.K <= FEW && isTall(params) && few.fits(params) },
  ];
}

/** The sums over each of so many parts of k of a large product A·B of few tiles, for `matmulNNParts`. */
export function blockedParts(parts: number): TiledVariant {
  const variant = blockedVariant('nn', false, { ...LARGE, parts });
  return { ...variant, fits: (params) => params.M >= 128 && params.N >= 128 && variant.fits(params) };
}

/** Whether a result has few large tiles, about half as many as an H200 has multiprocessors, and each of them much to add. */
function isDeep({ M, N, K }: Params): boolean {
  return Math.ceil(M / LARGE.M) * Math.ceil(N / LARGE.N) <= 80 && K >= 256;
}

/** Whether columns of a tn's large a, the rows of its result, are no whole quads, but the rows of a are. */
function isPadded({ M, K, aOffset, lda }: Params): boolean {
  return K > FEW && aOffset === 0 && Math.ceil(M / 4) * 4 <= lda;
}

/** The variant of one shape, which fits wherever operands are aligned. */
export function blockedVariant(layout: MatmulLayout, bias: boolean, shape: BlockShape, sums = false): TiledVariant {
  const { M, N, K, rows, columns } = shape;
  const across = N / columns;
  // The 32 threads that run together have 4x8 blocks of outputs: they read the fewest different vec4s.
  const lanes = shape.warps
    ? `let row = index / 32u / ${across / 8}u * 4u + index % 32u / 8u;
  let column = index / 32u % ${across / 8}u * 8u + index % 8u;`
    : `let row = index / ${across}u;
  let column = index % ${across}u;`;
  const aAlongK = layout !== 'tn';
  const bAlongK = layout === 'nt';
  const wholeC = layout === 'tn' || shape.wholeC === true;
  const { parts = 1 } = shape;
  const end = parts > 1 ? 'end' : 'p.K';
  const strideA = (M + PADDING) / 4;
  const strideB = (N + PADDING) / 4;
  // Threads that run together stage products of one row from up to K / 4 quads of k: each eight k begin in other banks.
  const skew = K === 16 || K === 32 ? 32 / K : 0;
  const skewA = aAlongK ? skew : 0;
  const skewB = bAlongK ? skew : 0;
  const groups = K % 8 === 0 ? K / 8 : 1;
  const inGroup = K / groups;
  const bBase = K * strideA + groups * skewA;
  const tileQuads = bBase + K * strideB + groups * skewB;
  // A part may end within a quad, and rows of a go on to the end of their last one.
  const lastQuad = parts > 1 ? 'min(k, (p.K - 1u) / 4u * 4u)' : 'min(k, p.K - 4u)';
  const e = (i: number) => `(index + ${i * THREADS}u)`;
  const operand = (name: 'a' | 'b') => {
    const [extent, first, edge, alongK] =
      name === 'a' ? ([M, 'm0', 'p.M', aAlongK] as const) : ([N, 'n0', 'p.N', bAlongK] as const);
    // Rows of a may go on to the end of their last quad.
    const lastOuter = layout === 'tn' && name === 'a' ? '(p.M - 1u) / 4u * 4u' : `${edge} - 4u`;
    const count = (extent * K) / 4;
    const fetches = Math.ceil(count / THREADS);
    const [stride, skewed] = name === 'a' ? [strideA, skewA] : [strideB, skewB];
    const base = name === 'a' ? '0' : `${bBase}`;
    const guard = (i: number, body: string) =>
      (i + 1) * THREADS <= count ? body : `if (index < ${count - i * THREADS}u) { ${body} }`;
    return {
      declare: range(fetches)
        .map((i) => `var ${name}${i} = vec4f();`)
        .join(' '),
      fetch: range(fetches)
        .map((i) =>
          guard(
            i,
            alongK
              ? `${name}${i} = fetch_${name}(${first} + ${e(i)} / ${K / 4}u, k0 + ${e(i)} % ${K / 4}u * 4u);`
              : `${name}${i} = fetch_${name}(${first} + ${e(i)} % ${extent / 4}u * 4u, k0 + ${e(i)} / ${extent / 4}u);`,
          ),
        )
        .join('\n    '),
      stage: range(fetches)
        .map((i) =>
          guard(
            i,
            alongK
              ? range(4)
                  .map(
                    (j) =>
                      `staged[${base}u + (${e(i)} % ${K / 4}u * 4u + ${j}u) * ${stride}u + ${e(i)} % ${K / 4}u / 2u * ${skewed}u + ${e(i)} / ${K}u][${e(i)} / ${K / 4}u % 4u] = ${name}${i}[${j}];`,
                  )
                  .join(' ')
              : `staged[${base}u + ${e(i)} / ${extent / 4}u * ${stride}u + ${e(i)} % ${extent / 4}u] = ${name}${i};`,
          ),
        )
        .join('\n    '),
      // Past the edge of the tile the last row or quad is read again and not stored; past the last product, 0.
      wgsl: alongK
        ? `fn fetch_${name}(outer: u32, k: u32) -> vec4f {
  let value = ${name}[(p.${name}Offset + min(outer, ${edge} - 1u) * p.ld${name} + ${lastQuad}) / 4u];
  return select(vec4f(), value, ${parts > 1 ? `vec4u(k, k + 1u, k + 2u, k + 3u) < vec4u(end_of_part)` : 'vec4<bool>(k < p.K)'});
}`
        : `fn fetch_${name}(outer: u32, k: u32) -> vec4f {
  let value = ${name}[(p.${name}Offset + min(k, p.K - 1u) * p.ld${name} + min(outer, ${lastOuter})) / 4u];
  return select(vec4f(), value, vec4<bool>(k < ${parts > 1 ? 'end_of_part' : 'p.K'}));
}`,
    };
  };
  const a = operand('a');
  const b = operand('b');
  const rowQuads = range(rows / 4);
  const columnQuads = range(columns / 4);
  const sum = (r: number, q: number) => `s${r}_${q}`;
  const allSums = range(rows).flatMap((r) => columnQuads.map((q) => sum(r, q)));
  const rowOf = (r: number) => `m0 + ${Math.floor(r / 4) * (M / rowQuads.length)}u + row * 4u + ${r % 4}u`;
  const columnOf = (q: number) => `n0 + ${q * (N / columnQuads.length)}u + column * 4u`;
  const fetch = `${a.fetch}
    ${b.fetch}`;
  const stage = `${a.stage}
    ${b.stage}`;
  const store = wholeC
    ? range(rows)
        .flatMap((r) => columnQuads.map((q) => `store4(${rowOf(r)}, ${columnOf(q)}, ${sum(r, q)});`))
        .join('\n  ')
    : range(rows)
        .map((r) =>
          storeTile(
            columnQuads.flatMap((q) => range(4).map((j) => `${sum(r, q)}[${j}]`)),
            rowOf(r),
            `n0 + at / 4u * ${N / columnQuads.length}u + column * 4u + at % 4u`,
          ),
        )
        .map((text) => `{ ${text} }`)
        .join('\n  ');
  return {
    name: `block-${M}x${N}x${K}${shape.warps ? 'w' : ''}${shape.wholeC ? 'c' : ''}${parts > 1 ? `-${parts}` : ''}`,
    vectors: ['a', 'b', ...(wholeC ? ['c', ...(bias ? ['bias'] : [])] : [])],
    workgroupSize: [THREADS, 1, 1],
    workgroups: (params) => [Math.ceil(params.N / N), Math.ceil(params.M / M), parts],
    fits: (params) =>
      (parts === 1 || Math.ceil(params.K / 4) * 4 <= params.lda) &&
      [
        'aOffset',
        'lda',
        'bOffset',
        'ldb',
        ...(parts > 1 ? ['N'] : layout === 'tn' ? ['cOffset', 'ldc', 'N'] : ['K']),
        ...(wholeC && parts === 1 ? ['cOffset', 'ldc', 'N', ...(bias ? ['biasOffset'] : [])] : []),
      ].every((name) => params[name] % 4 === 0) &&
      (layout !== 'tn' || params.M % 4 === 0 || isPadded(params)) &&
      (bAlongK || params.N % 4 === 0) &&
      params.K > 0,
    wgsl: `
var<workgroup> staged: array<vec4f, ${tileQuads}>;
${parts > 1 ? PARTS_WGSL : wholeC ? store4Wgsl(bias) : storeWgsl(bias)}${sums ? columnSumWgsl('a[at / 4u][at % 4u]') : ''}
${a.wgsl}
${b.wgsl}
fn tile(group: vec3u, local: vec3u, index: u32) {
  let n0 = group.x * ${N}u;
  let m0 = group.y * ${M}u;
  ${lanes}
  ${allSums.map((s) => `var ${s} = vec4f();`).join(' ')}
  ${a.declare}
  ${b.declare}
  ${
    parts > 1
      ? `let length = ((p.K + 3u) / 4u + ${parts - 1}u) / ${parts}u * 4u;
  var k0 = group.z * length;
  let end = min(k0 + length, p.K);
  part = group.z;
  end_of_part = end;`
      : 'var k0 = 0u;'
  }
  ${fetch}
  ${stage}
  workgroupBarrier();
  loop {
    k0 += ${K}u;
    if (k0 < ${end}) {
    ${fetch}
    }
    for (var group_of_k = 0u; group_of_k < ${groups}u; group_of_k++) {
    for (var k = 0u; k < ${inGroup}u; k++) {
      let x = (group_of_k * ${inGroup}u + k) * ${strideA}u + group_of_k * ${skewA}u + row;
      let y = ${bBase}u + (group_of_k * ${inGroup}u + k) * ${strideB}u + group_of_k * ${skewB}u + column;
      ${rowQuads.map((q) => `let x${q} = staged[x + ${(q * M) / rowQuads.length / 4}u];`).join(' ')}
      ${columnQuads.map((q) => `let y${q} = staged[y + ${(q * N) / columnQuads.length / 4}u];`).join(' ')}
      ${range(rows)
        .map((r) => columnQuads.map((q) => `${sum(r, q)} += x${Math.floor(r / 4)}[${r % 4}] * y${q};`).join(' '))
        .join('\n      ')}
    }
    }
    if (k0 >= ${end}) { break; }
    workgroupBarrier();
    ${stage}
    workgroupBarrier();
  }
  ${store}
  ${sums ? `if (group.x == 0u && index < ${M}u) { sumColumn(m0 + index); }` : ''}
}`,
  };
}

/** Where a workgroup's part of k ends, and the store of four sums of it. */
const PARTS_WGSL = `
var<private> part: u32;
var<private> end_of_part: u32;
fn store4(m: u32, n: u32, sum: vec4f) {
  if (m < p.M && n < p.N) { c[((part * p.M + m) * p.N + n) / 4u] = sum; }
}`;

/** Stores four finished sums of a row, if they lie within C. */
const store4Wgsl = (bias: boolean) => `
fn store4(m: u32, n: u32, sum: vec4f) {
  if (m < p.M && n < p.N) {
    let at = (p.cOffset + m * p.ldc + n) / 4u;
    var value = sum;
    if (p.accumulate != 0u) { value += c[at]; }
    ${
      bias
        ? `value += bias[(p.biasOffset + n) / 4u];
    if (p.relu != 0u) { value = select(value, vec4f(), value < vec4f()); }`
        : ''
    }
    c[at] = value;
  }
}`;
