import type { TiledVariant } from '../kernel.ts';
import { PARTS, range, WARP } from './few-rows-sums.ts';
import { type ProductWords, plainWords } from './product-words.ts';

/** How a workgroup of `threads` shares a product with few rows. */
export interface StreamShape {
  readonly threads: number;
  /** How 32 neighbouring threads share the outputs; those left over are slices of k. */
  readonly rowLanes: number;
  readonly columnLanes: number;
  /** Neighbourhoods of 32 threads side by side; those left over are slices of k too. */
  readonly columnWarps: number;
  /** Outputs of a thread. */
  readonly rows: number;
  readonly columns: number;
  /** vec4s along k of a thread between two barriers. */
  readonly turns: number;
  /** Turns whose weights are on their way or in use: a multiple of `turns`, or a part of them. */
  readonly ahead: number;
  /** Workgroups along k, each of which leaves a sum of its own; 1: the sum is finished here. */
  readonly parts: number;
  /** vec4s of workgroup memory, at most: MOST_QUADS if left out. */
  readonly quads?: number;
}

/** A sum over a part of k: parts[part, m, n], the rows N elements long. */
const storePartWgsl = `
fn store(part: u32, m: u32, n: u32, sum: f32) {
  if (m < p.M && n < p.N) { c[(part * p.M + m) * p.N + n] = sum; }
}`;

/** vec4s of workgroup memory: 32 KiB, which every real GPU has. */
const MOST_QUADS = 2048;

/**
 * A product with few rows (nt, nn): a workgroup has all rows of a few columns. Rows of a lie in workgroup memory, a chunk of
 * k at a time; the weight goes straight to the registers of the threads that need it, `ahead` turns before it is used.
 * Addresses are made once, and what may lie beyond the end has a path of its own: between two loads there are products only.
 * Slices of k are added at the end in order.
 */
export function streamVariant(layout: 'nt' | 'nn', store: string, shape: StreamShape): TiledVariant {
  const { threads, parts } = shape;
  const { M, N } = streamTile(shape);
  const { quads, functions, body } = streamCode(layout, shape, plainWords);
  return {
    name: `stream-${M}x${N}x${4 * depthOf(shape)}${parts > 1 ? `p${parts}` : ''}`,
    vectors: ['a', 'b'],
    workgroupSize: [threads, 1, 1],
    workgroups: (params) => [Math.ceil(params.N / N), Math.ceil(params.M / M), parts],
    fits: (params) =>
      ['aOffset', 'lda', 'bOffset', 'ldb', layout === 'nt' ? 'K' : 'N'].every((name) => params[name] % 4 === 0) &&
      params.K > 0,
    wgsl: `
var<workgroup> staged: array<vec4f, ${quads}>;
${parts > 1 ? storePartWgsl : store}${functions}
fn tile(group: vec3u, local: vec3u, index: u32) {${body}
}`,
  };
}

/** Rows and columns of a workgroup. */
export function streamTile({ rowLanes, columnLanes, columnWarps, rows, columns }: StreamShape) {
  return { M: rowLanes * rows, N: columnLanes * columns * columnWarps };
}

/** vec4s along k of a workgroup between two barriers. */
function depthOf({ threads, rowLanes, columnLanes, columnWarps, turns }: StreamShape): number {
  return (threads / rowLanes / columnLanes / columnWarps) * turns;
}

/** WGSL of a product that is shared so: what it declares, and the body of a function of `group` and `index`. */
export interface StreamCode {
  /** vec4s of workgroup memory that `staged` must have. */
  readonly quads: number;
  readonly functions: string;
  readonly body: string;
}

export function streamCode(layout: 'nt' | 'nn', shape: StreamShape, p: ProductWords): StreamCode {
  const {
    threads,
    rowLanes,
    columnLanes,
    columnWarps,
    rows,
    columns,
    turns,
    ahead,
    parts,
    quads: most = MOST_QUADS,
  } = shape;
  const nt = layout === 'nt';
  const laneSlices = WARP / rowLanes / columnLanes;
  const sliceWarps = threads / WARP / columnWarps;
  const slices = laneSlices * sliceWarps;
  const cells = rowLanes * columnLanes;
  const M = rowLanes * rows;
  const warpColumns = columnLanes * columns;
  const N = warpColumns * columnWarps;
  const depth = slices * turns;
  // Neighbouring rows begin in other banks.
  const stride = depth + (laneSlices % 8);
  const aCount = M * depth;
  const pieces = range(Math.ceil(aCount / threads));
  const guard = (i: number, body: string) =>
    (i + 1) * threads <= aCount ? body : `if (index < ${aCount - i * threads}u) { ${body} }`;
  const e = (i: number) => `(index + ${i * threads}u)`;
  const aligned = threads % depth === 0;
  const rowOf = (i: number) => (aligned ? `index / ${depth}u + ${(i * threads) / depth}u` : `${e(i)} / ${depth}u`);
  const quadOf = (i: number) => (aligned ? `index % ${depth}u` : `${e(i)} % ${depth}u`);
  const fetchA = (k0: string) => `if (${k0} + ${depth}u <= whole) {
    ${pieces.map((i) => guard(i, `a${i} = ${p.a}[from${i} + ${k0}];`)).join(' ')}
    } else {
    ${pieces.map((i) => guard(i, `a${i} = lastOfA(from${i}, ${quadOf(i)}, ${k0}, end);`)).join(' ')}
    }`;
  const stage = pieces
    .map((i) =>
      guard(
        i,
        aligned
          ? `staged[place + ${((i * threads) / depth) * stride}u] = a${i};`
          : `staged[${e(i)} / ${depth}u * ${stride}u + ${e(i)} % ${depth}u] = a${i};`,
      ),
    )
    .join(' ');
  const names = (set: number) =>
    nt
      ? range(columns).map((c) => `y${set}_${c}`)
      : range(columns / 4).flatMap((q) => range(4).map((j) => `y${set}_${q}_${j}`));
  const weight = (set: number, c: number, j: number) =>
    nt ? `y${set}_${c}.${PARTS[j]}` : `y${set}_${Math.floor(c / 4)}_${j}.${PARTS[c % 4]}`;
  /** The weights of the turn that begins at k0. */
  const fetchB = (set: number, k0: string) =>
    nt
      ? `{ let at = min(${k0} + slice, last); ${range(columns)
          .map((c) => `y${set}_${c} = ${p.b}[b${c} + at];`)
          .join(' ')} }`
      : `if (${k0} + ${slices}u <= whole) {
      let at = (4u * (${k0} + slice)) * ldb4;
      ${range(4)
        .flatMap((j) => range(columns / 4).map((q) => `y${set}_${q}_${j} = ${p.b}[b${q} + at + ${j}u * ldb4];`))
        .join(' ')}
      } else {
      let at = 4u * (${k0} + slice);
      ${range(4)
        .flatMap((j) =>
          range(columns / 4).map((q) => `y${set}_${q}_${j} = ${p.b}[b${q} + min(at + ${j}u, ${p.K} - 1u) * ldb4];`),
        )
        .join(' ')}
      }`;
  const add = (set: number, turn: number) =>
    range(rows)
      .map(
        (r) =>
          `{ let x = staged[mine + ${r * rowLanes * stride + turn * slices}u]; ${range(columns)
            .map((c) => PARTS.map((part, j) => `s${r}_${c} += x.${part} * ${weight(set, c, j)};`).join(' '))
            .join(' ')} }`,
      )
      .join('\n    ');
  const chunks = range(Math.ceil(ahead / turns))
    .map(
      (chunk) => `
    ${range(turns)
      .map((t) => {
        const set = (chunk * turns + t) % ahead;
        const next = `k4 + ${(t + ahead) * slices}u`;
        return `${t > 0 ? `if (k4 + ${t * slices}u < end) {` : '{'}
    ${add(set, t)}
    if (${next} < end) { ${fetchB(set, next)} }
    }`;
      })
      .join('\n    ')}
    k4 += ${depth}u;
    if (k4 >= end) { break; }
    workgroupBarrier();
    ${stage}
    if (k4 + ${depth}u < end) {
    ${fetchA(`(k4 + ${depth}u)`)}
    }
    workgroupBarrier();`,
    )
    .join('');
  const column = (c: number | string) =>
    nt ? `${c} * ${columnLanes}u + cl` : `${c} / 4u * ${4 * columnLanes}u + cl * 4u + ${c} % 4u`;
  // Neighbouring threads read what lies together: slices of a row of the weight, or columns of it.
  const [kl, rl, cl] = nt
    ? [`lane % ${laneSlices}u`, `lane / ${laneSlices}u % ${rowLanes}u`, `lane / ${laneSlices * rowLanes}u`]
    : [`lane / ${cells}u`, `lane / ${columnLanes}u % ${rowLanes}u`, `lane % ${columnLanes}u`];

  const sums = range(rows).flatMap((r) => range(columns).map((c) => `s${r}_${c}`));
  const quads = Math.ceil(sums.length / 4);
  const memory = Math.max(M * stride, threads * Math.min(quads, Math.floor(most / threads)));
  if (memory > most) throw new RangeError(`${memory} vec4s of workgroup memory`);
  const perRound = Math.ceil(quads / Math.ceil(quads / Math.floor(memory / threads)));
  const handOver = range(Math.ceil(quads / perRound)).map((round) => {
    const first = round * perRound;
    const count = Math.min(perRound, quads - first);
    const items = count * 4 * cells * columnWarps;
    const outputs = range(Math.ceil(items / threads));
    const terms = range(sliceWarps).flatMap((sw) =>
      range(laneSlices).map((l) => `staged[start + ${sw * columnWarps * WARP + l * (nt ? 1 : cells)}u][j]`),
    );
    const four = (v: number) => range(4).map((j) => sums[4 * (first + v) + j] ?? '0.0');
    return `
  workgroupBarrier();
  ${range(count)
    .map((v) => `staged[${v * threads}u + index] = vec4f(${four(v).join(', ')});`)
    .join('\n  ')}
  workgroupBarrier();
  {
    let j = index % 4u;
    ${outputs
      .map(
        (o) => `let at${o} = index + ${o * threads}u;
    var total${o} = 0.0;
    { let rest = at${o} / ${4 * cells}u;
      let start = min(rest / ${columnWarps}u, ${count - 1}u) * ${threads}u + rest % ${columnWarps}u * ${WARP}u + at${o} / 4u % ${cells}u * ${nt ? laneSlices : 1}u;
      ${terms.map((term) => `total${o} += ${term};`).join(' ')} }`,
      )
      .join('\n    ')}
    ${outputs
      .map(
        (o) => `{ let cell = at${o} / 4u % ${cells}u;
      let rest = at${o} / ${4 * cells}u;
      let sum = ${4 * first}u + rest / ${columnWarps}u * 4u + j;
      let rl = ${nt ? `cell % ${rowLanes}u` : `cell / ${columnLanes}u`};
      let cl = ${nt ? `cell / ${rowLanes}u` : `cell % ${columnLanes}u`};
      let c = sum % ${columns}u;
      if (at${o} < ${items}u && sum < ${sums.length}u) {
        ${p.store}(${parts > 1 ? 'group.z, ' : ''}m0 + sum / ${columns}u * ${rowLanes}u + rl, group.x * ${N}u + rest % ${columnWarps}u * ${warpColumns}u + ${column('c')}, total${o});
      } }`,
      )
      .join('\n    ')}
  }`;
  });

  return {
    quads: memory,
    functions: `
// Beyond the end of the sum 0, so that what is read of b there does not count.
fn lastOfA(start: u32, quad: u32, k0: u32, end: u32) -> vec4f {
  let k4 = k0 + quad;
  let value = ${p.a}[start - quad + min(k4, (${p.K} - 1u) / 4u)];
  let inside = vec4u(4u * k4) + vec4u(0u, 1u, 2u, 3u) < vec4u(${p.K});
  return select(vec4f(), value, inside & vec4<bool>(k4 < end));
}`,
    body: `
  let lane = index % ${WARP}u;
  let warp = index / ${WARP}u;
  let kl = ${kl};
  let rl = ${rl};
  let cl = ${cl};
  let slice = warp / ${columnWarps}u * ${laneSlices}u + kl;
  let m0 = group.y * ${M}u;
  let n0 = group.x * ${N}u + warp % ${columnWarps}u * ${warpColumns}u;
  let last = (${p.K} - 1u) / 4u;
  ${
    parts > 1
      ? `let share = (last + ${parts}u) / ${parts}u;
  let begin = min(group.z * share, last + 1u);
  let end = min(begin + share, last + 1u);`
      : `let begin = 0u;
  let end = last + 1u;`
  }
  let whole = min(end, ${p.K} / 4u);
  ${
    nt
      ? range(columns)
          .map((c) => `let b${c} = (${p.bOffset} + min(n0 + ${column(`${c}u`)}, ${p.N} - 1u) * ${p.ldb}) / 4u;`)
          .join('\n  ')
      : `let ldb4 = ${p.ldb} / 4u;
  ${range(columns / 4)
    .map((q) => `let b${q} = (${p.bOffset} + min(n0 + ${4 * q * columnLanes}u + cl * 4u, ${p.N} - 4u)) / 4u;`)
    .join('\n  ')}`
  }
  ${pieces
    .map((i) => `let from${i} = (${p.aOffset} + min(m0 + ${rowOf(i)}, ${p.M} - 1u) * ${p.lda}) / 4u + ${quadOf(i)};`)
    .join('\n  ')}
  ${aligned ? `let place = index / ${depth}u * ${stride}u + index % ${depth}u;` : ''}
  ${sums.map((s) => `var ${s} = 0.0;`).join(' ')}
  ${pieces.map((i) => `var a${i} = vec4f();`).join(' ')}
  ${range(ahead)
    .flatMap(names)
    .map((name) => `var ${name} = vec4f();`)
    .join(' ')}
  ${fetchA('begin')}
  ${range(ahead)
    .map((set) => fetchB(set, `(begin + ${set * slices}u)`))
    .join('\n  ')}
  ${stage}
  ${fetchA(`(begin + ${depth}u)`)}
  workgroupBarrier();
  let mine = rl * ${stride}u + slice;
  var k4 = begin;
  loop {${chunks}
  }
  ${handOver.join('')}`,
  };
}
