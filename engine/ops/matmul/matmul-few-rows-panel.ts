import type { TiledVariant } from '../kernel.ts';
import {
  addProducts,
  HANDED,
  handOver,
  type Lanes,
  PARTS,
  range,
  slicesOf,
  sumNames,
  THREADS,
  WARP,
} from './few-rows-sums.ts';

export interface PanelShape extends Lanes {
  /** vec4s along k that are staged at once. */
  readonly depth: number;
  /** Stages that are on their way while one is added. */
  readonly ahead: number;
  /** Workgroups along k, each of which leaves a sum of its own; 1: the sum is finished here. */
  readonly parts: number;
}

/** A sum over a part of k: parts[part, m, n], the rows N elements long. */
const storePartWgsl = `
fn store(part: u32, m: u32, n: u32, sum: f32) {
  if (m < p.M && n < p.N) { c[(part * p.M + m) * p.N + n] = sum; }
}`;

/**
 * A product with few rows (nt, nn): a workgroup has all rows of a few columns. Stages of both operands pass through
 * registers, where many bytes are on their way at once, into workgroup memory, from where the lanes share them. Slices of k
 * are added at the end in order.
 */
export function panelVariant(layout: 'nt' | 'nn', store: string, shape: PanelShape): TiledVariant {
  const { rowLanes, columnLanes, rows, columns, depth, ahead, parts } = shape;
  const nt = layout === 'nt';
  const { laneSlices, slices } = slicesOf(shape);
  const M = rowLanes * rows;
  const N = columnLanes * columns;
  // A staged row is one vec4 longer than needed, against bank conflicts.
  const stride = depth + 1;
  const bStride = nt ? stride : N / 4;
  const bBase = M * stride;
  const aCount = M * depth;
  const bCount = N * depth;
  const staged = Math.max(bBase + (nt ? N * stride : depth * N), HANDED);
  const e = (i: number) => `(index + ${i * THREADS}u)`;
  const pieces = (count: number) => range(Math.ceil(count / THREADS));
  const guard = (i: number, count: number, body: string) =>
    (i + 1) * THREADS <= count ? body : `if (index < ${count - i * THREADS}u) { ${body} }`;
  const bPlace = (i: number) => (nt ? `${e(i)} / ${depth}u * ${stride}u + ${e(i)} % ${depth}u` : `${e(i)}`);
  const fetch = (set: number, k4: string) =>
    [
      ...pieces(aCount).map((i) =>
        guard(i, aCount, `a${set}_${i} = fetchA(m0 + ${e(i)} / ${depth}u, ${k4} + ${e(i)} % ${depth}u, end);`),
      ),
      ...pieces(bCount).map((i) =>
        guard(
          i,
          bCount,
          nt
            ? `b${set}_${i} = b[(p.bOffset + min(n0 + ${e(i)} / ${depth}u, p.N - 1u) * p.ldb) / 4u + min(${k4} + ${e(i)} % ${depth}u, last)];`
            : `b${set}_${i} = b[(p.bOffset + min(4u * (${k4}) + ${e(i)} / ${N / 4}u, p.K - 1u) * p.ldb + min(n0 + ${e(i)} % ${N / 4}u * 4u, p.N - 4u)) / 4u];`,
        ),
      ),
    ].join('\n    ');
  const stage = (set: number) =>
    [
      ...pieces(aCount).map((i) =>
        guard(i, aCount, `staged[${e(i)} / ${depth}u * ${stride}u + ${e(i)} % ${depth}u] = a${set}_${i};`),
      ),
      ...pieces(bCount).map((i) => guard(i, bCount, `staged[${bBase}u + ${bPlace(i)}] = b${set}_${i};`)),
    ].join('\n    ');
  // Rows, and the columns of nt, lie the lanes apart, so that neighbouring lanes read neighbouring staged rows.
  const column = (c: number | string) => (nt ? `column + ${c} * ${columnLanes}u` : `column * ${columns}u + ${c}`);
  const weight = (c: number, j: number) => (nt ? `y${c}.${PARTS[j]}` : `y${Math.floor(c / 4)}_${j}.${PARTS[c % 4]}`);
  const add = `
    for (var at = slice; at < ${depth}u; at += ${slices}u) {
      ${range(rows)
        .map((r) => `let x${r} = staged[(row + ${r * rowLanes}u) * ${stride}u + at];`)
        .join(' ')}
      ${
        nt
          ? range(columns)
              .map((c) => `let y${c} = staged[${bBase}u + (${column(`${c}u`)}) * ${bStride}u + at];`)
              .join(' ')
          : range(columns / 4)
              .flatMap((q) =>
                range(4).map(
                  (j) =>
                    `let y${q}_${j} = staged[${bBase}u + (4u * at + ${j}u) * ${bStride}u + column * ${columns / 4}u + ${q}u];`,
                ),
              )
              .join(' ')
      }
      ${addProducts(shape, weight, '      ')}
    }`;
  return {
    name: `panel-${M}x${N}x${4 * depth}${parts > 1 ? `p${parts}` : ''}`,
    vectors: ['a', 'b'],
    workgroupSize: [THREADS, 1, 1],
    workgroups: (params) => [Math.ceil(params.N / N), Math.ceil(params.M / M), parts],
    fits: (params) =>
      ['aOffset', 'lda', 'bOffset', 'ldb', nt ? 'K' : 'N'].every((name) => params[name] % 4 === 0) && params.K > 0,
    wgsl: `
var<workgroup> staged: array<vec4f, ${staged}>;
${parts > 1 ? storePartWgsl : store}
// Beyond the end of the sum 0, so that what is staged of b there does not count.
fn fetchA(m: u32, k4: u32, end: u32) -> vec4f {
  let value = a[(p.aOffset + min(m, p.M - 1u) * p.lda) / 4u + min(k4, (p.K - 1u) / 4u)];
  let inside = vec4u(4u * k4) + vec4u(0u, 1u, 2u, 3u) < vec4u(p.K);
  return select(vec4f(), value, inside & vec4<bool>(k4 < end));
}
fn tile(group: vec3u, local: vec3u, index: u32) {
  let lane = index % ${WARP}u;
  let slice = index / ${WARP}u * ${laneSlices}u + lane % ${laneSlices}u;
  let row = lane / ${laneSlices}u % ${rowLanes}u;
  let column = lane / ${laneSlices * rowLanes}u;
  let m0 = group.y * ${M}u;
  let n0 = group.x * ${N}u;
  let last = (p.K - 1u) / 4u;
  ${
    parts > 1
      ? `let share = (last + ${parts}u) / ${parts}u;
  let begin = group.z * share;
  let end = min(begin + share, last + 1u);`
      : `let begin = 0u;
  let end = last + 1u;`
  }
  ${sumNames(shape)
    .map((s) => `var ${s} = 0.0;`)
    .join(' ')}
  ${range(ahead)
    .flatMap((set) => [...pieces(aCount).map((i) => `a${set}_${i}`), ...pieces(bCount).map((i) => `b${set}_${i}`)])
    .map((name) => `var ${name} = vec4f();`)
    .join(' ')}
  ${range(ahead)
    .map((set) => fetch(set, `begin + ${set * depth}u`))
    .join('\n  ')}
  for (var k4 = begin; ; k4 += ${ahead * depth}u) {${range(ahead)
    .map(
      (set) => `
    ${stage(set)}
    workgroupBarrier();
    if (k4 + ${(set + ahead) * depth}u < end) {
    ${fetch(set, `k4 + ${(set + ahead) * depth}u`)}
    }${add}
    workgroupBarrier();
    if (k4 + ${(set + 1) * depth}u >= end) { break; }`,
    )
    .join('')}
  }
  ${handOver(
    shape,
    'staged',
    `let column = cell / ${rowLanes}u;
      let c = sum % ${columns}u;
      store(${parts > 1 ? 'group.z, ' : ''}m0 + cell % ${rowLanes}u + sum / ${columns}u * ${rowLanes}u, n0 + ${column('c')}, total);`,
  )}
}`,
  };
}
