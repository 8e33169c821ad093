import { pairMaskWgsl } from '../dropout/pair-mask.ts';
import type { Params, TiledVariant } from '../kernel.ts';

const DIRECTIVES = `enable f16;
enable subgroups;
enable chromium_experimental_subgroup_matrix;
diagnostic(off, chromium.subgroup_matrix_uniformity);
diagnostic(off, subgroup_uniformity);`;
/** Rows of a workgroup, one a lane of its one subgroup: queries, keys in attention-grad-kv. */
const OWN = 32;
/** Rows that these are treated with at once. */
const BLOCK = 16;
/** vec4s from row to row of a workgroup's scores, so that rows begin in different banks. */
const STRIDE = 5;
const range = (n: number) => Array.from({ length: n }, (_, i) => i);
const quads = range(BLOCK / 4);
const SCORES1 = `var<workgroup> scores1: array<vec4u, ${OWN * STRIDE}>;`;
const two = range(2);
const LEFT = 'subgroup_matrix_left<f16, 16, 16>';
const RIGHT = 'subgroup_matrix_right<f16, 16, 16>';
const RESULT = 'subgroup_matrix_result<f32, 16, 16>';
const LOG2_E = Math.LOG2E;

/**
 * On tensor cores, for heads of 16 columns and operands in halves: one subgroup a workgroup, so that barriers cost little, and
 * 2.5 or 5 KiB of workgroup memory, since a multiprocessor has some 50 in all. Scores of 32 own rows with 16 others pass through
 * that memory as float32; each lane makes the weights of its own row of them and leaves these, as halves, in their place.
 * What is multiplied is halves, as in torch's kernels for float16; scores, sums and exponentials are float32.
 */
function variant(vectors: readonly string[], octets: readonly string[], memory: string, wgsl: string): TiledVariant {
  return {
    name: 'matrix',
    directives: DIRECTIVES,
    vectors,
    octets,
    workgroupSize: [OWN, 1, 1],
    workgroups: ({ T, B, H }: Params) => [T / OWN, B * H, 1],
    fits: ({ B, T, H, HD, groupSize, stride, qOffset, kOffset, vOffset }: Params) =>
      HD === 16 &&
      groupSize === 1 &&
      T % OWN === 0 &&
      T >= 2 * OWN &&
      [stride, qOffset, kOffset, vOffset].every((n) => n % 8 === 0) &&
      B * H > 0 &&
      B * H <= 65_535,
    wgsl: `${pairMaskWgsl}
var<workgroup> scores0: array<vec4u, ${OWN * STRIDE}>;
${memory}
fn octet(low: vec4f, high: vec4f) -> vec4u { return vec4u(bitcast<vec2u>(vec4<f16>(low)), bitcast<vec2u>(vec4<f16>(high))); }
fn low(o: vec4u) -> vec4f { return vec4f(bitcast<vec4<f16>>(o.xy)); }
fn high(o: vec4u) -> vec4f { return vec4f(bitcast<vec4<f16>>(o.zw)); }
fn tile(group: vec3u, local: vec3u, index: u32) {
  let b = group.y / p.H;
  let h = group.y % p.H;
  let lane = local.x;
  let own = group.x * ${OWN}u;
  let t = own + lane;
  let scale = 1.0 / sqrt(f32(HD));
  let factor = scale * ${LOG2_E};
  let mask = dropout_mask();
  let kept_scale = mask.scale * scale;
  // Units of eight halves from row to row, and where this head's first row is.
  let step = p.stride / 8u;
  let q_first = (b * p.T * p.stride + p.qOffset + h * HD) / 8u;
  let k_first = (b * p.T * p.stride + p.kOffset + h * HD) / 8u;
  let v_first = (b * p.T * p.stride + p.vOffset + h * HD) / 8u;
  let o_step = p.H * HD / 8u;
  let o_first = b * p.T * o_step + h * HD / 8u;
  let row0 = group.y * p.T;
  let row = lane * ${STRIDE}u;
${wgsl}
}`,
  };
}

const left = (name: string, array: string, first: string, step: string) =>
  two
    .map(
      (m) =>
        `let ${name}${m} = subgroupMatrixLoad<${LEFT}, row_major>(&${array}, ${first} + (own + ${16 * m}u) * ${step}, ${step});`,
    )
    .join('\n  ');
const right = (order: 'row_major' | 'col_major', array: string, first: string, step: string, other = 'other') =>
  `subgroupMatrixLoad<${RIGHT}, ${order}>(&${array}, ${first} + ${other} * ${step}, ${step})`;
/** scores = left · rightᵀ */
const product = (scores: string, name: string, matrix: string) =>
  two
    .map(
      (m) =>
        `subgroupMatrixStore<row_major>(&${scores}, ${16 * m * STRIDE}u, subgroupMatrixMultiply<f32>(${name}${m}, ${matrix}), ${STRIDE}u);`,
    )
    .join('\n    ');
const add = (sum: string, scores: string, matrix: string) =>
  two
    .map(
      (m) =>
        `${sum}${m} = subgroupMatrixMultiplyAccumulate(subgroupMatrixLoad<${LEFT}, row_major>(&${scores}, ${16 * m * STRIDE}u, ${STRIDE}u), ${matrix}, ${sum}${m});`,
    )
    .join('\n    ');
/** Fetches matrices of a block before its turn, since a multiprocessor has too few subgroups to wait for memory: `name`, of the block at `other`. */
const fetch = (name: string, array: string, first: string, step: string, other: string) =>
  `${name} = ${right('col_major', array, first, step, other)};`;
const AHEAD = `let ahead = min(other + ${BLOCK}u, p.T - ${BLOCK}u);`;
const results = (sum: string) => two.map((m) => `var ${sum}${m}: ${RESULT};`).join(' ');
const read = (scores: string, c: number) => `bitcast<vec4f>(${scores}[row + ${c}u])`;
const put = (scores: string, name: string) =>
  two.map((o) => `${scores}[row + ${o}u] = octet(${name}${2 * o}, ${name}${2 * o + 1});`).join(' ');
const rowsOf = (sum: string) =>
  two.map((m) => `subgroupMatrixStore<row_major>(&scores0, ${16 * m * STRIDE}u, ${sum}${m}, ${STRIDE}u);`).join(' ');
/** Sums to the rows of dqkv from `first`, in units of eight, on: float32 as they are, halves through workgroup memory. */
const store = (sum: string, first: string, half: boolean) =>
  half
    ? `workgroupBarrier();
  ${rowsOf(sum)}
  workgroupBarrier();
  ${two.map((o) => `dqkv[${first} + t * step + ${o}u] = octet(${read('scores0', 2 * o)}, ${read('scores0', 2 * o + 1)});`).join(' ')}`
    : two
        .map(
          (m) =>
            `subgroupMatrixStore<row_major>(&dqkv, ${first} * 8u + (own + ${16 * m}u) * p.stride, ${sum}${m}, p.stride);`,
        )
        .join('\n  ');
const lanes = 'vec4u(0u, 1u, 2u, 3u)';
/**
 * Words of the mask, one made by each lane, for all lanes: four at a time at the ends of the first rows of scores0, which no
 * product touches.
 */
const share = (word: string, words: number) =>
  `{ let word = ${word};
      let words = vec4u(${range(4)
        .map((i) => `subgroupShuffle(word, (4u * lane + ${i}u) % ${OWN}u)`)
        .join(', ')});
      if (lane < ${words / 4}u) { scores0[row + ${BLOCK / 4}u] = words; } }`;
const shared = (quad: number) => `scores0[${quad * STRIDE + BLOCK / 4}u]`;

/** By so much (in powers of two) a score may exceed a row's running maximum before its sums are scaled anew. */
const SLACK = 8;

/** `attention`: rows of a workgroup are queries. */
export const attentionMatrix: TiledVariant = variant(
  ['out'],
  ['qkv'],
  'var<workgroup> anew: u32;',
  `
  ${left('q', 'qkv', 'q_first', 'step')}
  ${results('o')}
  var most = -1e30;
  var total = 0.0;
  let all = select(p.T, own + ${OWN}u, p.causal != 0u);
  let mask_row = pair_row(mask, row0 + t);
  var next_k: ${RIGHT};
  ${fetch('next_k', 'qkv', 'k_first', 'step', '0u')}
  for (var other = 0u; other < all; other += ${BLOCK}u) {
    let values = ${right('row_major', 'qkv', 'v_first', 'step')};
    ${product('scores0', 'q', 'next_k')}
    ${AHEAD}
    ${fetch('next_k', 'qkv', 'k_first', 'step', 'ahead')}
    if (mask.threshold != 0u) ${share(`pair_column(mask, row0 + other + lane % ${BLOCK}u)`, BLOCK)}
    workgroupBarrier();
    ${quads
      .map(
        (c) => `var s${c} = ${read('scores0', c)} * factor;
    if (p.causal != 0u) { s${c} = select(vec4f(-1e30), s${c}, other + ${4 * c}u + ${lanes} <= vec4u(t)); }`,
      )
      .join('\n    ')}
    let four = max(max(s0, s1), max(s2, s3));
    let highest = max(max(four.x, four.y), max(four.z, four.w));
    let rises = highest > most + ${SLACK}.0;
    let shrink = select(1.0, exp2(most - highest), rises);
    most = select(most, highest, rises);
    ${quads.map((c) => `s${c} = exp2(s${c} - most);`).join(' ')}
    let added = s0 + s1 + s2 + s3;
    total = total * shrink + added.x + added.y + added.z + added.w;
    if (mask.threshold != 0u) {
      ${quads
        .map(
          (c) => `{ let columns = ${shared(c)};
      ${range(4)
        .map((n) => `if (!pair_kept(mask, mask_row, columns[${n}])) { s${c}[${n}] = 0.0; }`)
        .join(' ')} }`,
        )
        .join('\n      ')}
    }
    let any = subgroupAny(rises);
    if (lane == 0u) { anew = u32(any); }
    if (workgroupUniformLoad(&anew) != 0u) {
      // Some row's maximum rose: what is summed so far becomes less, row by row.
      ${rowsOf('o')}
      workgroupBarrier();
      ${quads.map((c) => `scores0[row + ${c}u] = bitcast<vec4u>(${read('scores0', c)} * shrink);`).join(' ')}
      workgroupBarrier();
      ${two.map((m) => `o${m} = subgroupMatrixLoad<${RESULT}, row_major>(&scores0, ${16 * m * STRIDE}u, ${STRIDE}u);`).join(' ')}
      workgroupBarrier();
    }
    ${put('scores0', 's')}
    workgroupBarrier();
    ${add('o', 'scores0', 'values')}
    workgroupBarrier();
  }
  ${rowsOf('o')}
  workgroupBarrier();
  let last = mask.scale / total;
  ${quads.map((c) => `out[(((b * p.T + t) * p.H + h) * HD) / 4u + ${c}u] = ${read('scores0', c)} * last;`).join('\n  ')}
  lse[row0 + t] = (most + log2(total)) * ${Math.LN2};`,
);

/** `attention-grad-q`: rows of a workgroup are queries. */
const gradQ = (half: boolean): TiledVariant =>
  variant(
    [],
    ['qkv', 'out', 'dout', ...(half ? ['dqkv'] : [])],
    SCORES1,
    `
  ${left('q', 'qkv', 'q_first', 'step')}
  ${left('d', 'dout', 'o_first', 'o_step')}
  ${results('dq')}
  var row_delta = 0.0;
  ${two.map((o) => `{ let x = dout[o_first + t * o_step + ${o}u]; let y = out[o_first + t * o_step + ${o}u]; row_delta += dot(low(x), low(y)) + dot(high(x), high(y)); }`).join('\n  ')}
  let row_lse = lse[row0 + t] * ${LOG2_E};
  let all = select(p.T, own + ${OWN}u, p.causal != 0u);
  let mask_row = pair_row(mask, row0 + t);
  var next_k: ${RIGHT};
  var next_v: ${RIGHT};
  ${fetch('next_k', 'qkv', 'k_first', 'step', '0u')}
  ${fetch('next_v', 'qkv', 'v_first', 'step', '0u')}
  for (var other = 0u; other < all; other += ${BLOCK}u) {
    let keys = ${right('row_major', 'qkv', 'k_first', 'step')};
    ${product('scores0', 'q', 'next_k')}
    ${product('scores1', 'd', 'next_v')}
    ${AHEAD}
    ${fetch('next_k', 'qkv', 'k_first', 'step', 'ahead')}
    ${fetch('next_v', 'qkv', 'v_first', 'step', 'ahead')}
    if (mask.threshold != 0u) ${share(`pair_column(mask, row0 + other + lane % ${BLOCK}u)`, BLOCK)}
    workgroupBarrier();
    ${quads
      .map(
        (c) => `var g${c} = ${read('scores1', c)};
    if (mask.threshold != 0u) {
      let columns = ${shared(c)};
      ${range(4)
        .map((n) => `if (!pair_kept(mask, mask_row, columns[${n}])) { g${c}[${n}] = 0.0; }`)
        .join(' ')}
    }
    g${c} = exp2(${read('scores0', c)} * factor - row_lse) * (g${c} * kept_scale - row_delta * scale);
    if (p.causal != 0u) { g${c} = select(vec4f(), g${c}, other + ${4 * c}u + ${lanes} <= vec4u(t)); }`,
      )
      .join('\n    ')}
    ${put('scores0', 'g')}
    workgroupBarrier();
    ${add('dq', 'scores0', 'keys')}
    workgroupBarrier();
  }
  ${store('dq', 'q_first', half)}
  delta[row0 + t] = row_delta;`,
  );

/** `attention-grad-kv`: rows of a workgroup are keys. */
const gradKV = (half: boolean): TiledVariant =>
  variant(
    ['lse', 'delta'],
    ['qkv', 'dout', ...(half ? ['dqkv'] : [])],
    SCORES1,
    `
  ${left('k', 'qkv', 'k_first', 'step')}
  ${left('v', 'qkv', 'v_first', 'step')}
  ${results('dk')}
  ${results('dv')}
  let mask_column = pair_column(mask, row0 + t);
  for (var other = select(0u, own, p.causal != 0u); other < p.T; other += ${BLOCK}u) {
    { let r = ${right('col_major', 'qkv', 'q_first', 'step')};
    ${product('scores0', 'k', 'r')} }
    { let r = ${right('col_major', 'dout', 'o_first', 'o_step')};
    ${product('scores1', 'v', 'r')} }
    // The lower half of the lanes makes the rows' multipliers, the upper half what is added.
    if (mask.threshold != 0u) ${share(
      `pair_key(mask, 2u * (row0 + other + lane % ${BLOCK}u) + lane / ${BLOCK}u) | select(0u, 1u, lane < ${BLOCK}u)`,
      2 * BLOCK,
    )}
    workgroupBarrier();
    ${quads
      .map(
        (c) => `var w${c} = exp2(${read('scores0', c)} * factor - lse[(row0 + other) / 4u + ${c}u] * ${LOG2_E});
    if (p.causal != 0u) { w${c} = select(vec4f(), w${c}, other + ${4 * c}u + ${lanes} >= vec4u(t)); }
    var g${c} = ${read('scores1', c)};
    var kept${c} = w${c};
    if (mask.threshold != 0u) {
      let multipliers = ${shared(c)};
      let addends = ${shared(BLOCK / 4 + c)};
      ${range(4)
        .map(
          (n) =>
            `if (!pair_kept(mask, vec2u(multipliers[${n}], addends[${n}]), mask_column)) { g${c}[${n}] = 0.0; kept${c}[${n}] = 0.0; }`,
        )
        .join('\n      ')}
    }
    g${c} = w${c} * (g${c} * kept_scale - delta[(row0 + other) / 4u + ${c}u] * scale);
    w${c} = kept${c} * mask.scale;`,
      )
      .join('\n    ')}
    ${put('scores0', 'w')}
    ${put('scores1', 'g')}
    workgroupBarrier();
    { let r = ${right('row_major', 'dout', 'o_first', 'o_step')};
    ${add('dv', 'scores0', 'r')} }
    { let r = ${right('row_major', 'qkv', 'q_first', 'step')};
    ${add('dk', 'scores1', 'r')} }
    workgroupBarrier();
  }
  ${store('dk', 'k_first', half)}
  ${store('dv', 'v_first', half)}`,
  );

/** Both, with dqkv as float32 and as halves. */
export const [attentionGradQMatrix, attentionGradQHalfMatrix] = [gradQ(false), gradQ(true)];
export const [attentionGradKVMatrix, attentionGradKVHalfMatrix] = [gradKV(false), gradKV(true)];
