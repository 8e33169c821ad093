import type { TiledVariant } from '../kernel.ts';

/** Threads that run together. */
const WARP = 32;

/** A sum over a part of k: parts[part, m, n], the rows N elements long. */
const storePartWgsl = `
fn store(part: u32, m: u32, n: u32, sum: f32) {
  if (m < p.M && n < p.N) { c[(part * p.M + m) * p.N + n] = sum; }
}`;

const range = (n: number) => Array.from({ length: n }, (_, i) => i);
const PARTS = ['x', 'y', 'z', 'w'] as const;

export interface SpreadRowsShape {
  readonly threads: number;
  /** How 32 neighbouring threads share all rows and some columns; those left over are slices of k. */
  readonly rowLanes: number;
  readonly columnLanes: number;
  /** Outputs of a thread; its rows and columns are neighbours. */
  readonly rows: number;
  readonly columns: number;
  /** Neighbourhoods side by side along n; the others are slices of k too. */
  readonly columnWarps: number;
  /** vec4s along k that a thread fetches before it adds them. */
  readonly unroll: number;
  /** How many vec4s of b, and whether one of a, are on their way while one is added; 0: `unroll` says. */
  readonly ahead: number;
  readonly aheadA: boolean;
  /** Sums that a thread hands over between two barriers, in vec4s: odd, so that neighbours write different banks. */
  readonly quads: number;
  /** Workgroups along k, each of which leaves a sum of its own (see matmul-parts.ts); 1: the sum is finished here. */
  readonly parts: number;
}

/**
 * A product with few rows (nt, nn): the 32 threads of a neighbourhood have all rows of a few columns between them, so that
 * each element is fetched from memory once a workgroup and shared by the fetch itself; the neighbourhoods, and the lanes
 * left over, are slices of k, added at the end in order.
 */
export function spreadRowsVariant(layout: 'nt' | 'nn', store: string, shape: SpreadRowsShape): TiledVariant {
  const {
    threads,
    rowLanes,
    columnLanes,
    rows,
    columns,
    columnWarps,
    unroll,
    ahead,
    aheadA,
    quads: atOnce,
    parts,
  } = shape;
  const nt = layout === 'nt';
  const laneSlices = WARP / rowLanes / columnLanes;
  const warpSlices = threads / WARP / columnWarps;
  const slices = laneSlices * warpSlices;
  const M = rowLanes * rows;
  const N = columnWarps * columnLanes * columns;
  const sums = range(rows).flatMap((r) => range(columns).map((c) => `s${r}_${c}`));
  const quads = Math.ceil(sums.length / 4);
  const rounds = Math.ceil(quads / atOnce);
  const cells = threads / slices;

  const fetches = (set: string, k4: string, masked: boolean): [string, string][] => [
    ...range(rows).map((r): [string, string] => [
      `${set}x${r}`,
      masked ? `select(vec4f(), a[a${r} + ${k4}], inside(${k4}))` : `a[a${r} + ${k4}]`,
    ]),
    ...(nt
      ? range(columns).map((c): [string, string] => [`${set}y${c}`, `b[b${c} + ${k4}]`])
      : range(columns / 4).flatMap((q) =>
          range(4).map((j): [string, string] => [
            `${set}y${q}_${j}`,
            `b[b${q} + ${masked ? `min(4u * ${k4} + ${j}u, p.K - 1u)` : `(4u * ${k4} + ${j}u)`} * ldb4]`,
          ]),
        )),
  ];
  const weight = (set: string, c: number, j: number) =>
    nt ? `${set}y${c}.${PARTS[j]}` : `${set}y${Math.floor(c / 4)}_${j}.${PARTS[c % 4]}`;
  const add = (set: string) =>
    range(rows)
      .flatMap((r) =>
        range(columns).map((c) =>
          range(4)
            .map((j) => `s${r}_${c} += ${set}x${r}.${PARTS[j]} * ${weight(set, c, j)};`)
            .join(' '),
        ),
      )
      .join('\n      ');
  const lets = (set: string, k4: string, masked: boolean) =>
    fetches(set, k4, masked)
      .map(([name, value]) => `let ${name} = ${value};`)
      .join(' ');
  // Where neighbouring lanes are no slices, a thread's fetches lie side by side, so that whole sectors are used.
  const at = (i: number) => (laneSlices > 1 ? `slice + ${i * slices}u` : `slice * ${unroll}u + ${i}u`);
  const ofA = ([name]: readonly [string, string]) => /^[a-z]\d*x/.test(name);
  const keep = (set: string, k4: string, pick: (f: readonly [string, string]) => boolean) =>
    fetches(set, k4, false)
      .filter(pick)
      .map(([name, value]) => `var ${name} = ${value};`)
      .join(' ');
  const ring = `
  ${range(ahead)
    .map((i) => keep(`f${i}`, `min(begin + slice + ${i * slices}u, whole - 1u)`, (f) => !ofA(f)))
    .join('\n  ')}
  ${aheadA ? keep('f', 'min(begin + slice, whole - 1u)', ofA) : ''}
  for (; base + ${ahead * slices}u <= whole; base += ${ahead * slices}u) {${range(ahead)
    .map((i) => {
      const here = fetches(`f${i}`, `(base + slice + ${i * slices}u)`, false);
      const rename = (text: string) => (aheadA ? text.replaceAll(`f${i}x`, 'fx') : text);
      const next = fetches('n', `min(base + slice + ${(i + ahead) * slices}u, whole - 1u)`, false).filter(
        (f) => !ofA(f),
      );
      const nextA = fetches('m', `min(base + slice + ${(i + 1) * slices}u, whole - 1u)`, false).filter(ofA);
      return `
    {
      ${[...next, ...(aheadA ? nextA : here.filter(ofA))].map(([name, value]) => `let ${name} = ${value};`).join(' ')}
      ${rename(add(`f${i}`))}
      ${next.map(([name]) => `f${i}${name.slice(1)} = ${name};`).join(' ')}
      ${aheadA ? nextA.map(([name]) => `f${name.slice(1)} = ${name};`).join(' ') : ''}
    }`;
    })
    .join('')}
  }`;
  const step = unroll * slices;
  const loop =
    ahead > 0
      ? ring
      : `
  for (; base + ${step}u <= whole; base += ${step}u) {
    ${range(unroll)
      .map((i) => `let k${i} = base + ${at(i)}; ${lets(`f${i}`, `k${i}`, false)}`)
      .join('\n    ')}
    ${range(unroll)
      .map((i) => add(`f${i}`))
      .join('\n    ')}
  }`;
  return {
    name: `spread-${M}x${N}k${slices}${parts > 1 ? `p${parts}` : ''}`,
    vectors: ['a', 'b'],
    workgroupSize: [threads, 1, 1],
    workgroups: (params) => [Math.ceil(params.N / N), Math.ceil(params.M / M), parts],
    fits: (params) =>
      ['aOffset', 'lda', 'bOffset', 'ldb', nt ? 'K' : 'N'].every((name) => params[name] % 4 === 0) && params.K >= 4,
    wgsl: `
var<workgroup> handed: array<vec4f, ${Math.min(atOnce, quads) * threads}>;
${parts > 1 ? storePartWgsl : store}
fn inside(k4: u32) -> vec4<bool> { return vec4u(4u * k4) + vec4u(0u, 1u, 2u, 3u) < vec4u(p.K); }
fn tile(group: vec3u, local: vec3u, index: u32) {
  let lane = index % ${WARP}u;
  let warp = index / ${WARP}u;
  let slice = warp % ${warpSlices}u * ${laneSlices}u + lane % ${laneSlices}u;
  let m0 = group.y * ${M}u + lane / ${laneSlices}u % ${rowLanes}u * ${rows}u;
  let n0 = group.x * ${N}u + (warp / ${warpSlices}u * ${columnLanes}u + lane / ${laneSlices * rowLanes}u) * ${columns}u;
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
  ${
    parts > 1
      ? `let share = ((p.K + 3u) / 4u + ${parts - 1}u) / ${parts}u;
  let begin = group.z * share;
  let end = min(begin + share, (p.K + 3u) / 4u);
  let whole = min(end, p.K / 4u);`
      : `let begin = 0u;
  let end = (p.K + 3u) / 4u;
  let whole = p.K / 4u;`
  }
  var base = begin;${loop}
  for (var k4 = base + slice; k4 < end; k4 += ${slices}u) {
    ${lets('l', 'k4', true)}
    ${add('l')}
  }
  ${range(rounds)
    .map((round) => {
      const first = round * atOnce;
      const count = Math.min(atOnce, quads - first);
      const four = (v: number) => range(4).map((j) => sums[4 * (first + v) + j] ?? '0.0');
      return `${round > 0 ? 'workgroupBarrier();' : ''}
  ${range(count)
    .map((v) => `handed[index * ${count}u + ${v}u] = vec4f(${four(v).join(', ')});`)
    .join('\n  ')}
  workgroupBarrier();
  for (var at = index; at < ${4 * count * cells}u; at += ${threads}u) {
    let cell = at / ${4 * count}u;
    let output = at % ${4 * count}u;
    let side = cell / ${rowLanes * columnLanes}u;
    let place = cell % ${rowLanes * columnLanes}u;
    let start = (side * ${warpSlices * WARP}u + place * ${laneSlices}u) * ${count}u + output / 4u;
    var total = 0.0;
    for (var other = 0u; other < ${slices}u; other++) {
      total += handed[start + (other / ${laneSlices}u * ${WARP}u + other % ${laneSlices}u) * ${count}u][output % 4u];
    }
    let sum = output + ${4 * first}u;
    if (sum < ${sums.length}u) {
      store(${parts > 1 ? 'group.z, ' : ''}
        group.y * ${M}u + place % ${rowLanes}u * ${rows}u + sum / ${columns}u,
        group.x * ${N}u + (side * ${columnLanes}u + place / ${rowLanes}u) * ${columns}u + sum % ${columns}u,
        total,
      );
    }
  }`;
    })
    .join('\n  ')}
}`,
  };
}
