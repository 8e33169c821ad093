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

/**
 * A product with few rows (nt, nn): the 32 threads of a neighbourhood have all rows of a few columns between them, so that
 * each element is fetched from memory once a workgroup and shared by the fetch itself. The next vec4s are fetched before
 * those that are there are added. The neighbourhoods, and the lanes left over, are slices of k, added at the end in order.
 */
export function spreadRowsVariant(layout: 'nt' | 'nn', store: string, shape: Lanes): TiledVariant {
  const { rowLanes, columnLanes, rows, columns } = shape;
  const nt = layout === 'nt';
  const { laneSlices, slices } = slicesOf(shape);
  const M = rowLanes * rows;
  const N = columnLanes * columns;

  /** The vec4s of b and of a that a thread needs at k4; `masked`: where the last products may be beyond K. */
  const fetch = (k4: string, masked: boolean): readonly (readonly [name: string, value: string])[] => [
    ...(nt
      ? range(columns).map((c) => [`y${c}`, `b[b${c} + ${k4}]`] as const)
      : range(columns / 4).flatMap((q) =>
          range(4).map((j) => {
            const k = masked ? `min(4u * ${k4} + ${j}u, p.K - 1u)` : `(4u * ${k4} + ${j}u)`;
            return [`y${q}_${j}`, `b[b${q} + ${k} * ldb4]`] as const;
          }),
        )),
    ...range(rows).map((r) => {
      const value = `a[a${r} + ${k4}]`;
      return [`x${r}`, masked ? `select(vec4f(), ${value}, inside(${k4}))` : value] as const;
    }),
  ];
  const declare = (kind: 'let' | 'var', prefix: string, list: ReturnType<typeof fetch>) =>
    list.map(([name, value]) => `${kind} ${prefix}${name} = ${value};`).join(' ');
  const weight = (c: number, j: number) => (nt ? `y${c}.${PARTS[j]}` : `y${Math.floor(c / 4)}_${j}.${PARTS[c % 4]}`);
  const add = addProducts(shape, weight, '    ');
  const here = fetch('k4', false);
  return {
    name: `spread-${M}x${N}`,
    vectors: ['a', 'b'],
    workgroupSize: [THREADS, 1, 1],
    workgroups: (params) => [Math.ceil(params.N / N), Math.ceil(params.M / M), 1],
    fits: (params) =>
      ['aOffset', 'lda', 'bOffset', 'ldb', nt ? 'K' : 'N'].every((name) => params[name] % 4 === 0) && params.K >= 4,
    wgsl: `
var<workgroup> handed: array<vec4f, ${HANDED}>;
${store}
fn inside(k4: u32) -> vec4<bool> { return vec4u(4u * k4) + vec4u(0u, 1u, 2u, 3u) < vec4u(p.K); }
fn tile(group: vec3u, local: vec3u, index: u32) {
  let lane = index % ${WARP}u;
  let slice = index / ${WARP}u * ${laneSlices}u + lane % ${laneSlices}u;
  let m0 = group.y * ${M}u + lane / ${laneSlices}u % ${rowLanes}u * ${rows}u;
  let n0 = group.x * ${N}u + lane / ${laneSlices * rowLanes}u * ${columns}u;
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
  ${sumNames(shape)
    .map((s) => `var ${s} = 0.0;`)
    .join(' ')}
  let whole = p.K / 4u;
  var k4 = min(slice, whole - 1u);
  ${declare('var', '', here)}
  var base = 0u;
  for (; base + ${slices}u <= whole; base += ${slices}u) {
    k4 = min(base + slice + ${slices}u, whole - 1u);
    ${declare('let', 'n', here)}
    ${add}
    ${here.map(([name]) => `${name} = n${name};`).join(' ')}
  }
  k4 = base + slice;
  if (4u * k4 < p.K) {
    ${fetch('k4', true)
      .map(([name, value]) => `${name} = ${value};`)
      .join(' ')}
    ${add}
  }
  ${handOver(
    shape,
    'handed',
    `store(
        group.y * ${M}u + cell % ${rowLanes}u * ${rows}u + sum / ${columns}u,
        group.x * ${N}u + cell / ${rowLanes}u * ${columns}u + sum % ${columns}u,
        total,
      );`,
  )}
}`,
  };
}
