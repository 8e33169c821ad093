import { dropoutWgsl } from '../dropout/dropout-mask.ts';
import type { Params, TiledVariant } from '../kernel.ts';
import type { MatmulLayout } from './matmul-wgsl.ts';

/** Rows, columns and terms of one product of the tensor cores. */
const TILE = 16;
/** Threads of a subgroup. */
const LANES = 32;
/** Halves that a thread fetches at once, and an element of a staged tile: 16 bytes. */
const UNIT = 8;
/** Units between rows of a staged tile, beyond its width, so that rows begin in different banks. */
const PADDING = 1;

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
  /** In how many parts the terms are cut, each a workgroup's own: c is then those sums, a part after the other. */
  readonly parts?: number;
}

/** What a, b and c are stored as, and whether there is a bias, which then is halves. */
export interface MatrixOperands {
  readonly a: 'f16' | 'f32';
  readonly b: 'f16' | 'f32';
  readonly c: 'f16' | 'f32';
  readonly bias: boolean;
  /** Whether each result is a gradient that passes where `hidden`, halves laid out as c, is above 0. */
  readonly gate?: boolean;
  /** With a bias: whether each result goes through ReLU and dropout. */
  readonly drop?: boolean;
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

/** The sums over each of so many parts of the terms of A·B, for a `matmulNNParts` whose a is float32. */
export function matrixParts(operands: MatrixOperands, parts: number): TiledVariant[] {
  if (operands.a !== 'f32' || operands.c !== 'f32') return [];
  const variant = matrixVariant('nn', operands, { ...SHAPES[0], parts });
  return [{ ...variant, fits: (params) => Math.min(params.M, params.N) >= WORTH_MATRICES && variant.fits(params) }];
}

/**
 * On tensor cores: products of halves, added in float32. Operands that are float32 are rounded to halves while they are staged
 * in workgroup memory, as torch.autocast rounds them; the next tile is fetched into registers meanwhile. Each subgroup holds
 * its outputs in 16x16 accumulators, each a variable of its own (an array of them is ten times slower on an H200). The bias
 * is one more term of the sums, with 1 as its other factor. Whole float32 tiles are stored as they are; those that cross an
 * edge, those with relu, dropout or a gate, those of several slices and halves, through workgroup memory.
 */
export function matrixVariant(layout: MatmulLayout, operands: MatrixOperands, shape: MatrixShape): TiledVariant {
  const { M, N, K, rows, columns, slices, parts = 1 } = shape;
  const blocks = (M / rows) * (N / columns);
  const subgroups = blocks * slices;
  const [end, ldc] = parts > 1 ? ['end', 'p.N'] : ['p.K', 'p.ldc'];
  const threads = subgroups * LANES;
  const aAlongK = layout !== 'tn';
  const bAlongK = layout === 'nt';
  const a = stagedOperand('a', operands.a, aAlongK, M, K, threads, parts > 1);
  const b = stagedOperand('b', operands.b, bAlongK, N, K, threads, parts > 1);
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
  const { c, bias, gate = false, drop = false } = operands;
  const wholeStores = slices === 1 && c === 'f32' && !gate && !drop;
  return {
    name: `matrix-${M}x${N}x${K}${slices > 1 ? `-${slices}` : ''}${parts > 1 ? `p${parts}` : ''}`,
    directives: DIRECTIVES,
    vectors: [...(operands.a === 'f32' ? ['a'] : []), ...(operands.b === 'f32' ? ['b'] : [])],
    octets: [
      ...(operands.a === 'f16' ? ['a'] : []),
      ...(operands.b === 'f16' ? ['b'] : []),
      ...(c === 'f16' ? ['c'] : []),
      ...(gate ? ['hidden'] : []),
    ],
    workgroupSize: [LANES, subgroups, 1],
    workgroups: (params) => [Math.ceil(params.N / N), Math.ceil(params.M / M), parts],
    fits: (params) =>
      fitsMatrices(layout, operands, parts > 1 ? { ...params, cOffset: 0, ldc: params.N, accumulate: 0 } : params),
    wgsl: `
${a.declare}
${b.declare}
${drop ? dropoutWgsl : ''}${parts > 1 ? PART_WGSL : ''}${finishWgsl(operands, shape)}
${a.wgsl}
${b.wgsl}
${bias ? BIAS_WGSL : ''}
fn tile(group: vec3u, local: vec3u, index: u32) {
  let n0 = group.x * ${N}u;
  let m0 = group.y * ${M}u;
  let block = local.y % ${blocks}u;
  let slice = local.y / ${blocks}u;
  let rows0 = block / ${N / columns}u * ${rows}u;
  let columns0 = block % ${N / columns}u * ${columns}u;
  let terms0 = slice * ${K / slices}u;
  ${sums.map(({ name }) => `var ${name}: subgroup_matrix_result<f32, ${TILE}, ${TILE}>;`).join('\n  ')}
  ${a.registers} ${b.registers}
  ${drop ? 'let mask = dropout_mask();' : ''}
  ${
    wholeStores
      ? `let whole = m0 + ${M}u <= p.M && n0 + ${N}u <= p.N${bias ? ' && p.relu == 0u' : ''};
  let to = ${parts > 1 ? 'group.z * p.M * p.N' : 'p.cOffset'} + (m0 + rows0) * ${ldc} + n0 + columns0;${
    parts > 1
      ? ''
      : `
  if (whole && p.accumulate != 0u) {
    ${sums
      .map(
        ({ name, row, column }) =>
          `${name} = subgroupMatrixLoad<subgroup_matrix_result<f32, ${TILE}, ${TILE}>, row_major>(&c, to + ${row}u * p.ldc + ${column}u, p.ldc);`,
      )
      .join('\n    ')}
  }`
  }`
      : ''
  }
  ${bias ? biasTerm(M, N, K, bAlongK, threads, multiply(TILE)) : ''}
  ${parts > 1 ? partOfTerms(parts) : 'var k0 = 0u;'}
  ${fetch}
  ${stage}
  workgroupBarrier();
  loop {
    let last = k0 + ${K}u >= ${end};
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
  ${
    wholeStores
      ? `if (whole) {
    ${sums
      .map(
        ({ name, row, column }) =>
          `subgroupMatrixStore<row_major>(&c, to + ${row}u * ${ldc} + ${column}u, ${name}, ${ldc});`,
      )
      .join('\n    ')}
    return;
  }`
      : ''
  }
  ${sums
    .map(
      ({
        name,
        row,
        column,
      }) => `subgroupMatrixStore<row_major>(&results, local.y * ${RESULT_QUADS}u, ${name}, ${RESULT_ROW}u);
  workgroupBarrier();
  finish(m0 + rows0 + ${row}u, n0 + columns0 + ${column}u, block * ${RESULT_QUADS}u, slice * ${LANES}u + local.x${drop ? ', mask' : ''});
  workgroupBarrier();`,
    )
    .join('\n  ')}
}`,
  };
}

/** Which part a workgroup adds, and where it ends: in functions; `tile` has a copy that is known to be uniform. */
const PART_WGSL = `var<private> part: u32;
var<private> end_of_part: u32;
`;

/** The parts of `matmulNNParts`: whole quads of terms, the last perhaps fewer. */
const partOfTerms = (parts: number) => `let length = ((p.K + 3u) / 4u + ${parts - 1}u) / ${parts}u * 4u;
  var k0 = group.z * length;
  let end = min(k0 + length, p.K);
  part = group.z;
  end_of_part = end;`;

/** vec4s of a row of a 16x16 result, and of all of it. */
const RESULT_ROW = TILE / 4;
const RESULT_QUADS = TILE * RESULT_ROW;

/**
 * WGSL: `results`, 16x16 of each subgroup (more memory, and a multiprocessor would have room for one workgroup only), and
 * `finish`, which adds those of all slices, does what comes after the sum, and stores them: one at a time as float32, eight at
 * a time as halves.
 */
function finishWgsl(operands: MatrixOperands, { M, N, rows, columns, slices, parts = 1 }: MatrixShape): string {
  const { c, bias, gate = false, drop = false } = operands;
  const blocks = (M / rows) * (N / columns);
  const half = c === 'f16';
  const width = half ? UNIT : 1;
  const perRow = TILE / width;
  const summed = (at: string, component: string) =>
    range(slices)
      .map((slice) => `results[held + ${slice * blocks * RESULT_QUADS}u + ${at}]${component}`)
      .join(' + ');
  const relu = (value: string, zero: string) => {
    const through = `${value} = select(${value}, ${zero}, ${value} < ${zero});`;
    if (drop) return through;
    return bias ? `if (p.relu != 0u) { ${through} }` : '';
  };
  const factors = (shift: number) =>
    `vec4f(${range(4)
      .map((i) => `dropout_factor(mask, at + ${shift + i}u)`)
      .join(', ')})`;
  const body = half
    ? `let quad = e / ${perRow}u * ${RESULT_ROW}u + e % ${perRow}u * 2u;
      var low = ${summed('quad', '')};
      var high = ${summed('quad + 1u', '')};
      ${relu('low', 'vec4f()')} ${relu('high', 'vec4f()')}
      ${
        gate
          ? `let gate = hidden[at / ${UNIT}u];
      low = select(low * p.scale, vec4f(), vec4f(bitcast<vec4<f16>>(gate.xy)) <= vec4f());
      high = select(high * p.scale, vec4f(), vec4f(bitcast<vec4<f16>>(gate.zw)) <= vec4f());`
          : ''
      }
      ${drop ? `low *= ${factors(0)}; high *= ${factors(4)};` : ''}
      c[at / ${UNIT}u] = octet(low, high);`
    : `var value = ${summed(`e / ${TILE}u * ${RESULT_ROW}u + e % ${TILE}u / 4u`, '[e % 4u]')};
      ${gate || drop || parts > 1 ? '' : 'if (p.accumulate != 0u) { value += c[at]; }'}
      ${relu('value', '0.0')}
      ${
        gate
          ? `let gate = hidden[at / ${UNIT}u];
      value = select(value * p.scale, 0.0, unpack2x16float(gate[at / 2u % 4u])[at % 2u] <= 0.0);`
          : ''
      }
      ${drop ? 'value *= dropout_factor(mask, at);' : ''}
      c[at] = value;`;
  return `var<workgroup> results: array<vec4f, ${(N / columns) * (M / rows) * slices * RESULT_QUADS}>;
fn octet(low: vec4f, high: vec4f) -> vec4u {
  return vec4u(bitcast<vec2u>(vec4<f16>(low)), bitcast<vec2u>(vec4<f16>(high)));
}
fn finish(m0: u32, n0: u32, held: u32, lane: u32${drop ? ', mask: DropoutMask' : ''}) {
  for (var e = lane; e < ${TILE * perRow}u; e += ${LANES * slices}u) {
    let m = m0 + e / ${perRow}u;
    let n = n0 + e % ${perRow}u * ${width}u;
    if (m < p.M && n < p.N) {
      let at = ${parts > 1 ? '(part * p.M + m) * p.N + n' : 'p.cOffset + m * p.ldc + n'};
      ${body}
    }
  }
}`;
}

/** Whether operands are aligned for reads of 16 bytes that stay within their rows, and c for the stores of whole tiles. */
function fitsMatrices(layout: MatmulLayout, operands: MatrixOperands, params: Params): boolean {
  const { M, N, K, cOffset, ldc, accumulate = 0 } = params;
  const aligned = (name: 'a' | 'b', along: number) => {
    const [offset, stride] = [params[`${name}Offset`], params[`ld${name}`]];
    const unit = operands[name] === 'f16' ? UNIT : UNIT / 2;
    // The last unit of a row may reach past its columns, if the row is longer.
    const room = along % UNIT === 0 || (Math.ceil(along / UNIT) * UNIT <= stride && offset === 0);
    return offset % unit === 0 && stride % unit === 0 && room;
  };
  const octets = [cOffset, ldc, N].every((n) => n % UNIT === 0);
  if ((operands.c === 'f16' || operands.gate) && !(octets && accumulate === 0)) return false;
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
  inParts: boolean,
): StagedOperand {
  const [first, edge, kind] = name === 'a' ? ['m0', 'p.M', 'left'] : ['n0', 'p.N', 'right'];
  const perRow = (alongK ? K : extent) / UNIT;
  const stride = perRow + PADDING;
  const units = (extent * K) / UNIT;
  const fetches = range(Math.ceil(units / threads));
  const e = (i: number) => `(index + ${i * threads}u)`;
  const guard = (i: number, body: string) =>
    (i + 1) * threads <= units ? body : `if (index < ${units - i * threads}u) { ${body} }`;
  const half = type === 'f16';
  const each = half ? UNIT : UNIT / 2;
  const end = inParts ? 'end_of_part' : 'p.K';
  // A part begins with any quad, so that the last quad of a row may be the first of a unit.
  const whole = inParts ? UNIT / 2 : UNIT;
  const at = alongK
    ? `(p.${name}Offset + min(outer, ${edge} - 1u) * p.ld${name} + min(k, (p.K - 1u) / ${whole}u * ${whole}u)) / ${each}u`
    : `(p.${name}Offset + min(k, p.K - 1u) * p.ld${name} + min(outer, (${edge} - 1u) / ${UNIT}u * ${UNIT}u)) / ${each}u`;
  const inRange = (value: string, shift: number) => {
    if (name === 'b') return value;
    if (half) return `select(vec4u(), ${value}, k < ${end})`;
    if (!alongK) return `select(vec4f(), ${value}, k < ${end})`;
    return `select(vec4f(), ${value}, vec4u(k) + vec4u(${range(4)
      .map((j) => `${shift + j}u`)
      .join(', ')}) < vec4u(${end}))`;
  };
  const coordinates = (i: number) =>
    alongK
      ? `let outer = ${first} + ${e(i)} / ${perRow}u; let k = k0 + ${e(i)} % ${perRow}u * ${UNIT}u;`
      : `let outer = ${first} + ${e(i)} % ${perRow}u * ${UNIT}u; let k = k0 + ${e(i)} / ${perRow}u;`;
  // A matrix of a is 16 rows of its terms, one of b 16 columns of theirs.
  const byRows = (name === 'a') === alongK;
  return {
    declare: `var<workgroup> ${name}_tile: array<vec4u, ${(alongK ? extent : K) * stride}>;`,
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
        const to = `${e(i)} / ${perRow}u * ${stride}u + ${e(i)} % ${perRow}u`;
        return guard(i, `${name}_tile[${to}] = ${half ? `${name}${i}` : `octet(${name}${i}, ${name}${i}_high)`};`);
      })
      .join('\n    '),
    load: (outer, k) =>
      `subgroupMatrixLoad<subgroup_matrix_${kind}<f16, ${TILE}, ${TILE}>, ${byRows ? 'row_major' : 'col_major'}>(&${name}_tile, ` +
      `${alongK ? `(${outer}) * ${stride}u + (${k}) / ${UNIT}u` : `(${k}) * ${stride}u + (${outer}) / ${UNIT}u`}, ${stride}u)`,
    wgsl: `fn at_${name}(outer: u32, k: u32) -> u32 { return ${at}; }`,
  };
}

/** The sums begin with 1·bias: a tile of 16 terms of which the first alone is not 0. */
function biasTerm(M: number, N: number, K: number, bAlongK: boolean, threads: number, multiply: string): string {
  const units = TILE / UNIT;
  const strideA = K / UNIT + PADDING;
  const strideB = (bAlongK ? K : N) / UNIT + PADDING;
  const fillB = bAlongK
    ? `for (var e = index; e < ${N * units}u; e += ${threads}u) {
    let value = select(0u, bias_at(n0 + e / ${units}u), e % ${units}u == 0u);
    b_tile[e / ${units}u * ${strideB}u + e % ${units}u] = vec4u(value, 0u, 0u, 0u);
  }`
    : `for (var e = index; e < ${(N / UNIT) * TILE}u; e += ${threads}u) {
    let n = n0 + e % ${N / UNIT}u * ${UNIT}u;
    var value = vec4u();
    if (e < ${N / UNIT}u) {
      value = vec4u(${range(4)
        .map((i) => `bias_at(n + ${2 * i}u) | (bias_at(n + ${2 * i + 1}u) << 16u)`)
        .join(', ')});
    }
    b_tile[e / ${N / UNIT}u * ${strideB}u + e % ${N / UNIT}u] = value;
  }`;
  return `for (var e = index; e < ${M * units}u; e += ${threads}u) {
    a_tile[e / ${units}u * ${strideA}u + e % ${units}u] = vec4u(select(0u, 0x3c00u, e % ${units}u == 0u), 0u, 0u, 0u);
  }
  ${fillB}
  workgroupBarrier();
  ${multiply}
  workgroupBarrier();`;
}

/** The 16 bits of a half of the bias. */
const BIAS_WGSL = `fn bias_at(n: u32) -> u32 {
  let at = p.biasOffset + min(n, p.N - 1u);
  return (bias[at / 2u] >> (16u * (at % 2u))) & 0xffffu;
}`;
