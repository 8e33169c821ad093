import type { Params, TiledVariant } from '../kernel.ts';
import type { MatmulLayout } from './matmul-wgsl.ts';

/** Rows, columns and terms of one product of the tensor cores. */
const TILE = 16;
/** Threads of a subgroup. */
const LANES = 32;
/** Halves between rows of a staged tile, beyond its width: 16 bytes, so that rows begin in different banks. */
const PADDING = 8;
/** Elements that a thread fetches at once. */
const UNIT = 8;

const range = (n: number) => Array.from({ length: n }, (_, i) => i);

/** A workgroup's tile of outputs, the terms added between two barriers, and the part of the tile that is one subgroup's. */
export interface MatrixShape {
  readonly M: number;
  readonly N: number;
  readonly K: number;
  readonly rows: number;
  readonly columns: number;
  /** Subgroups that share the same outputs, each of which adds its part of the staged terms. */
  readonly slices: number;
}

/** What a and b are stored as, and whether there is a bias, which then is halves. */
export interface MatrixOperands {
  readonly a: 'f16' | 'f32';
  readonly b: 'f16' | 'f32';
  readonly bias: boolean;
}

/** Extensions, and the rule that a subgroup's work be told from subgroup_id: `local.y` is it for a workgroup 32 threads wide. */
const DIRECTIVES = `enable f16;
enable subgroups;
enable chromium_experimental_subgroup_matrix;
diagnostic(off, chromium.subgroup_matrix_uniformity);`;

/** From large to small: the larger a tile, the fewer bytes a product needs, and the fewer workgroups there are. */
const SHAPES: readonly MatrixShape[] = [
  { M: 128, N: 128, K: 32, rows: 64, columns: 64, slices: 1 },
  { M: 64, N: 64, K: 64, rows: 64, columns: 64, slices: 4 },
];

/** Workgroups of the larger tile below which many of an H200's 132 multiprocessors are idle. */
const BUSY = 90;
/** Below so many rows, columns or terms the bytes and not the arithmetic take the time. */
const WORTH_MATRICES = 128;

/** The variants for these operands; of each shape of product the one with the largest tile that keeps the device busy. */
export function matrixVariants(layout: MatmulLayout, operands: MatrixOperands): TiledVariant[] {
  return SHAPES.filter(({ slices }) => slices === 1 || !operands.bias).map((shape) => {
    const variant = matrixVariant(layout, operands, shape);
    const busy = ({ M, N }: Params) => Math.ceil(M / 128) * Math.ceil(N / 128) >= BUSY;
    const worth = ({ M, N, K }: Params) => Math.min(M, N, K) >= WORTH_MATRICES;
    const suits = (params: Params) => operands.bias || busy(params) === (shape.slices === 1);
    return { ...variant, fits: (params) => worth(params) && suits(params) && variant.fits(params) };
  });
}

/**
 * On tensor cores: products of halves, added in float32. Operands that are float32 are rounded to halves while they are staged
 * in workgroup memory, as torch.autocast rounds them; the next tile is fetched into registers meanwhile. Each subgroup holds
 * its outputs in 16x16 accumulators, each a variable of its own (an array of them is ten times slower on an H200). The bias
 * is one more term of the sums, with 1 as its other factor. Whole tiles are stored as they are; those that cross an edge, those
 * with relu and those of several slices, through workgroup memory.
 */
export function matrixVariant(layout: MatmulLayout, operands: MatrixOperands, shape: MatrixShape): TiledVariant {
  const { M, N, K, rows, columns, slices } = shape;
  const blocks = (M / rows) * (N / columns);
  const subgroups = blocks * slices;
  const threads = subgroups * LANES;
  const aAlongK = layout !== 'tn';
  const bAlongK = layout === 'nt';
  const a = stagedOperand('a', operands.a, aAlongK, M, K, threads);
  const b = stagedOperand('b', operands.b, bAlongK, N, K, threads);
  const tileRows = range(rows / TILE);
  const tileColumns = range(columns / TILE);
  const sum = (i: number, j: number) => `c${i}_${j}`;
  const sums = tileRows.flatMap((i) => tileColumns.map((j) => ({ name: sum(i, j), row: i * TILE, column: j * TILE })));
  const multiply = (terms: number) => {
    const steps = range(terms / TILE).map((step) => {
      const k = `terms0 + ${step * TILE}u`;
      const left = tileRows.map((i) => `let l${i} = ${a.load(`rows0 + ${i * TILE}u`, k)};`);
      const right = tileColumns.map(
        (j) => `let r${j} = ${b.load(`columns0 + ${j * TILE}u`, k)};
      ${tileRows.map((i) => `${sum(i, j)} = subgroupMatrixMultiplyAccumulate(l${i}, r${j}, ${sum(i, j)});`).join('\n      ')}`,
      );
      return `{
      ${[...left, ...right].join('\n      ')}
      }`;
    });
    return steps.join('\n      ');
  };
  const fetch = `${a.fetch}
    ${b.fetch}`;
  const stage = `${a.stage}
    ${b.stage}`;
  return {
    name: `matrix-${M}x${N}x${K}${slices > 1 ? `-${slices}` : ''}`,
    directives: DIRECTIVES,
    vectors: [...(operands.a === 'f32' ? ['a'] : []), ...(operands.b === 'f32' ? ['b'] : [])],
    octets: [...(operands.a === 'f16' ? ['a'] : []), ...(operands.b === 'f16' ? ['b'] : [])],
    workgroupSize: [LANES, subgroups, 1],
    workgroups: (params) => [Math.ceil(params.N / N), Math.ceil(params.M / M), 1],
    fits: (params) => fitsMatrices(layout, operands, params),
    wgsl: `
${a.declare}
${b.declare}
var<workgroup> scratch: array<f32, ${subgroups * TILE * TILE}>;
${a.wgsl}
${b.wgsl}
${operands.bias ? BIAS_WGSL : ''}
fn finish(m0: u32, n0: u32, held: u32, lane: u32) {
  for (var e = lane; e < ${TILE * TILE}u; e += ${LANES * slices}u) {
    let m = m0 + e / ${TILE}u;
    let n = n0 + e % ${TILE}u;
    if (m < p.M && n < p.N) {
      let at = p.cOffset + m * p.ldc + n;
      var value = ${range(slices)
        .map((slice) => `scratch[held + e + ${slice * blocks * TILE * TILE}u]`)
        .join(' + ')};
      if (p.accumulate != 0u) { value += c[at]; }
      ${operands.bias ? 'if (p.relu != 0u && value < 0.0) { value = 0.0; }' : ''}
      c[at] = value;
    }
  }
}
fn tile(group: vec3u, local: vec3u, index: u32) {
  let n0 = group.x * ${N}u;
  let m0 = group.y * ${M}u;
  let block = local.y % ${blocks}u;
  let slice = local.y / ${blocks}u;
  let rows0 = block / ${N / columns}u * ${rows}u;
  let columns0 = block % ${N / columns}u * ${columns}u;
  let terms0 = slice * ${K / slices}u;
  let whole = ${slices === 1} && m0 + ${M}u <= p.M && n0 + ${N}u <= p.N${operands.bias ? ' && p.relu == 0u' : ''};
  ${sums.map(({ name }) => `var ${name}: subgroup_matrix_result<f32, ${TILE}, ${TILE}>;`).join('\n  ')}
  ${a.registers} ${b.registers}
  let to = p.cOffset + (m0 + rows0) * p.ldc + n0 + columns0;
  if (whole && p.accumulate != 0u) {
    ${sums
      .map(
        ({ name, row, column }) =>
          `${name} = subgroupMatrixLoad<subgroup_matrix_result<f32, ${TILE}, ${TILE}>, row_major>(&c, to + ${row}u * p.ldc + ${column}u, p.ldc);`,
      )
      .join('\n    ')}
  }
  ${operands.bias ? biasTerm(M, N, K, bAlongK, threads, multiply(TILE)) : ''}
  var k0 = 0u;
  ${fetch}
  ${stage}
  workgroupBarrier();
  loop {
    let last = k0 + ${K}u >= p.K;
    k0 += ${K}u;
    if (!last) {
    ${fetch}
    }
    ${multiply(K / slices)}
    if (last) { break; }
    workgroupBarrier();
    ${stage}
    workgroupBarrier();
  }
  if (whole) {
    ${sums
      .map(
        ({ name, row, column }) =>
          `subgroupMatrixStore<row_major>(&c, to + ${row}u * p.ldc + ${column}u, ${name}, p.ldc);`,
      )
      .join('\n    ')}
    return;
  }
  ${sums
    .map(
      ({
        name,
        row,
        column,
      }) => `subgroupMatrixStore<row_major>(&scratch, local.y * ${TILE * TILE}u, ${name}, ${TILE}u);
  workgroupBarrier();
  finish(m0 + rows0 + ${row}u, n0 + columns0 + ${column}u, block * ${TILE * TILE}u, slice * ${LANES}u + local.x);
  workgroupBarrier();`,
    )
    .join('\n  ')}
}`,
  };
}

/** Whether operands are aligned for reads of 16 bytes that stay within their rows, and c for the stores of whole tiles. */
function fitsMatrices(layout: MatmulLayout, operands: MatrixOperands, params: Params): boolean {
  const { M, N, K, cOffset, ldc } = params;
  const aligned = (name: 'a' | 'b', along: number) => {
    const [offset, stride] = [params[`${name}Offset`], params[`ld${name}`]];
    const unit = operands[name] === 'f16' ? UNIT : UNIT / 2;
    // The last unit of a row may reach past its columns, if the row is longer.
    const room = along % UNIT === 0 || (Math.ceil(along / UNIT) * UNIT <= stride && offset === 0);
    return offset % unit === 0 && stride % unit === 0 && room;
  };
  if (layout !== 'tn' && K % UNIT !== 0 && (operands.a === 'f16' || layout === 'nt')) return false;
  return (
    K > 0 &&
    M > 0 &&
    N > 0 &&
    cOffset % 4 === 0 &&
    ldc % 4 === 0 &&
    aligned('a', layout === 'tn' ? M : K) &&
    aligned('b', layout === 'nt' ? K : N)
  );
}

interface StagedOperand {
  /** The workgroup memory of a tile. */
  readonly declare: string;
  readonly registers: string;
  /** Reads the part of this thread at k0 into registers; terms past the last are 0 in a and whatever in b. */
  readonly fetch: string;
  readonly stage: string;
  /** One matrix of 16x16 from the rows (a) or columns (b) at `outer` and the terms at `k` of the tile. */
  load(outer: string, k: string): string;
  readonly wgsl: string;
}

/** How an operand's tile of `extent` rows or columns is fetched, staged as halves, and read as matrices. */
function stagedOperand(
  name: 'a' | 'b',
  type: 'f16' | 'f32',
  alongK: boolean,
  extent: number,
  K: number,
  threads: number,
): StagedOperand {
  const [first, edge, kind] = name === 'a' ? ['m0', 'p.M', 'left'] : ['n0', 'p.N', 'right'];
  const perRow = (alongK ? K : extent) / UNIT;
  const stride = (alongK ? K : extent) + PADDING;
  const units = (extent * K) / UNIT;
  const fetches = range(Math.ceil(units / threads));
  const e = (i: number) => `(index + ${i * threads}u)`;
  const guard = (i: number, body: string) =>
    (i + 1) * threads <= units ? body : `if (index < ${units - i * threads}u) { ${body} }`;
  const half = type === 'f16';
  const each = half ? UNIT : UNIT / 2;
  const at = alongK
    ? `(p.${name}Offset + min(outer, ${edge} - 1u) * p.ld${name} + min(k, (p.K - 1u) / ${UNIT}u * ${UNIT}u)) / ${each}u`
    : `(p.${name}Offset + min(k, p.K - 1u) * p.ld${name} + min(outer, (${edge} - 1u) / ${UNIT}u * ${UNIT}u)) / ${each}u`;
  const inRange = (value: string, shift: number) => {
    if (name === 'b') return value;
    if (half) return `select(vec4u(), ${value}, k < p.K)`;
    if (!alongK) return `select(vec4f(), ${value}, k < p.K)`;
    return `select(vec4f(), ${value}, vec4u(k) + vec4u(${range(4)
      .map((j) => `${shift + j}u`)
      .join(', ')}) < vec4u(p.K))`;
  };
  const coordinates = (i: number) =>
    alongK
      ? `let outer = ${first} + ${e(i)} / ${perRow}u; let k = k0 + ${e(i)} % ${perRow}u * ${UNIT}u;`
      : `let outer = ${first} + ${e(i)} % ${perRow}u * ${UNIT}u; let k = k0 + ${e(i)} / ${perRow}u;`;
  // A matrix of a is 16 rows of its terms, one of b 16 columns of theirs.
  const byRows = (name === 'a') === alongK;
  return {
    declare: `var<workgroup> ${name}_tile: array<vec4<f16>, ${((alongK ? extent : K) * stride) / 4}>;`,
    registers: fetches
      .map((i) => (half ? `var ${name}${i} = vec4u();` : `var ${name}${i} = vec4f(); var ${name}${i}_high = vec4f();`))
      .join(' '),
    fetch: fetches
      .map((i) =>
        guard(
          i,
          half
            ? `{ ${coordinates(i)} ${name}${i} = ${inRange(`${name}[at_${name}(outer, k)]`, 0)}; }`
            : `{ ${coordinates(i)} let at = at_${name}(outer, k); ${name}${i} = ${inRange(`${name}[at]`, 0)}; ${name}${i}_high = ${inRange(`${name}[at + 1u]`, 4)}; }`,
        ),
      )
      .join('\n    '),
    stage: fetches
      .map((i) => {
        const to = `${e(i)} / ${perRow}u * ${stride / 4}u + ${e(i)} % ${perRow}u * ${UNIT / 4}u`;
        const [low, high] = half
          ? [`bitcast<vec4<f16>>(${name}${i}.xy)`, `bitcast<vec4<f16>>(${name}${i}.zw)`]
          : [`vec4<f16>(${name}${i})`, `vec4<f16>(${name}${i}_high)`];
        return guard(i, `{ let to = ${to}; ${name}_tile[to] = ${low}; ${name}_tile[to + 1u] = ${high}; }`);
      })
      .join('\n    '),
    load: (outer, k) =>
      `subgroupMatrixLoad<subgroup_matrix_${kind}<f16, ${TILE}, ${TILE}>, ${byRows ? 'row_major' : 'col_major'}>(&${name}_tile, ` +
      `${alongK ? `(${outer}) * ${stride / 4}u + (${k}) / 4u` : `(${k}) * ${stride / 4}u + (${outer}) / 4u`}, ${stride / 4}u)`,
    wgsl: `fn at_${name}(outer: u32, k: u32) -> u32 { return ${at}; }`,
  };
}

/** The sums begin with 1·bias: a tile of 16 terms of which the first alone is not 0. */
function biasTerm(M: number, N: number, K: number, bAlongK: boolean, threads: number, multiply: string): string {
  const quads = TILE / 4;
  const strideA = (K + PADDING) / 4;
  const strideB = ((bAlongK ? K : N) + PADDING) / 4;
  const fillB = bAlongK
    ? `for (var e = index; e < ${N * quads}u; e += ${threads}u) {
    let value = select(0.0h, bias_at(n0 + e / ${quads}u), e % ${quads}u == 0u);
    b_tile[e / ${quads}u * ${strideB}u + e % ${quads}u] = vec4<f16>(value, 0.0h, 0.0h, 0.0h);
  }`
    : `for (var e = index; e < ${(N / 4) * TILE}u; e += ${threads}u) {
    let n = n0 + e % ${N / 4}u * 4u;
    var value = vec4<f16>();
    if (e < ${N / 4}u) { value = vec4<f16>(bias_at(n), bias_at(n + 1u), bias_at(n + 2u), bias_at(n + 3u)); }
    b_tile[e / ${N / 4}u * ${strideB}u + e % ${N / 4}u] = value;
  }`;
  return `for (var e = index; e < ${M * quads}u; e += ${threads}u) {
    a_tile[e / ${quads}u * ${strideA}u + e % ${quads}u] = vec4<f16>(select(0.0h, 1.0h, e % ${quads}u == 0u), 0.0h, 0.0h, 0.0h);
  }
  ${fillB}
  workgroupBarrier();
  ${multiply}
  workgroupBarrier();`;
}

const BIAS_WGSL = `fn bias_at(n: u32) -> f16 {
  let at = p.biasOffset + min(n, p.N - 1u);
  return f16(unpack2x16float(bias[at / 2u] >> (16u * (at % 2u))).x);
}`;
