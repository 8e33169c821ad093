import { dropoutWgsl } from '../dropout/dropout-mask.ts';
import type { Params, TiledVariant } from '../kernel.ts';
import { MATRIX_DIRECTIVES } from '../matmul/matmul-matrix.ts';

/** Rows (queries; keys in attention-grad-kv) of a subgroup: one a lane, in two matrices of 16. */
const OWN = 32;
/** Rows that are treated at once, and rows that are staged at once. */
const BLOCK = 32;
const CHUNK = 64;
/** Columns of a head: one matrix. */
const HEAD = 16;

/** vec4s from row to row, with padding so that rows begin in different banks. */
const HEAD_STRIDE = (HEAD + 8) / 4;
const SCORE_STRIDE = (BLOCK + 4) / 4;
const WEIGHT_STRIDE = (BLOCK + 8) / 4;
const OUT_STRIDE = (HEAD + 4) / 4;

const LOG2_E = Math.LOG2E;

const range = (n: number) => Array.from({ length: n }, (_, i) => i);
const LEFT = 'subgroup_matrix_left<f16, 16, 16>';
const RIGHT = 'subgroup_matrix_right<f16, 16, 16>';
const RESULT = 'subgroup_matrix_result<f32, 16, 16>';
const halvesOf = (n: number, name: string) => `var<workgroup> ${name}: array<vec4<f16>, ${n}>;`;

/**
 * On tensor cores, over qkv in halves: a subgroup has 32 rows, and of each block of 32 others the products with them, which
 * pass through workgroup memory so that each lane sees the scores of its own row; the weights go back as halves for the
 * second product. Scores, sums and exponentials are float32; what is multiplied is halves, as in torch's kernels for float16.
 */
function attentionMatrix(
  subgroups: number,
  vectors: readonly string[],
  octets: readonly string[],
  wgsl: string,
  heads: (params: Params) => number,
): TiledVariant {
  return {
    name: `matrix-${subgroups}`,
    directives: MATRIX_DIRECTIVES,
    vectors,
    octets,
    workgroupSize: [32, subgroups, 1],
    workgroups: (params) => [Math.ceil(params.T / (OWN * subgroups)), params.B * heads(params), 1],
    fits: ({ B, T, H, HD, stride, qOffset, kOffset, vOffset }) =>
      HD === HEAD &&
      T >= 2 * OWN &&
      [stride, qOffset, kOffset, vOffset].every((n) => n % 8 === 0) &&
      B * H > 0 &&
      B * H <= 65_535,
    wgsl: `${dropoutWgsl}
fn low(octet: vec4u) -> vec4<f16> { return bitcast<vec4<f16>>(octet.xy); }
fn high(octet: vec4u) -> vec4<f16> { return bitcast<vec4<f16>>(octet.zw); }
${wgsl}`,
  };
}

/** Both begin with the batch of the workgroup and the row of each lane (past the last row, that one again). */
const place = (subgroups: number, heads: string) => `
  let b = group.y / (${heads});
  let rows = b * p.T * p.stride;
  let scale = 1.0 / sqrt(f32(HD));
  let lane = local.x;
  let own = local.y * ${OWN}u;
  let mine = group.x * ${OWN * subgroups}u + own + lane;
  let t = min(mine, p.T - 1u);
  let mask = dropout_mask();`;

const queries = (subgroups: number) => `${place(subgroups, 'p.H')}
  let h = group.y % p.H;
  let i = group.y * p.T + t;
  let kv_head = rows + h / groupSize * HD;
  let q_at = rows + h * HD + t * p.stride + p.qOffset;
  let o_at = (b * p.T + t) * p.H * HD + h * HD;
  let all = select(p.T, min(p.T, (group.x + 1u) * ${OWN * subgroups}u), p.causal != 0u);
  let seen = select(p.T, t + 1u, p.causal != 0u);`;

/** Puts two octets at row `row` of an array of rows of a head. */
const putRow = (array: string, row: string, octets: readonly [string, string]) =>
  octets
    .map(
      (octet, u) =>
        `${array}[${row} * ${HEAD_STRIDE}u + ${2 * u}u] = low(${octet}); ${array}[${row} * ${HEAD_STRIDE}u + ${2 * u + 1}u] = high(${octet});`,
    )
    .join(' ');
const putFloats = (array: string, row: string, vec4: (d: number) => string) =>
  range(HEAD / 4)
    .map((d) => `${array}[${row} * ${HEAD_STRIDE}u + ${d}u] = vec4<f16>(${vec4(d)});`)
    .join(' ');

/** The two matrices of 16 of the subgroup's own rows in `array`. */
const ownRows = (name: string, array: string) =>
  range(2)
    .map(
      (m) =>
        `let ${name}${m} = subgroupMatrixLoad<${LEFT}, row_major>(&${array}, (own + ${16 * m}u) * ${HEAD_STRIDE}u, ${HEAD_STRIDE}u);`,
    )
    .join('\n  ');

/** `into`[own row, staged row] = own · stagedᵀ for the 32 staged rows from j on. */
const scores = (into: string, name: string, staged: string) =>
  range(2)
    .map(
      (
        n,
      ) => `{ let r = subgroupMatrixLoad<${RIGHT}, col_major>(&${staged}, (j + ${16 * n}u) * ${HEAD_STRIDE}u, ${HEAD_STRIDE}u);
        ${range(2)
          .map(
            (m) =>
              `subgroupMatrixStore<row_major>(&${into}, (own + ${16 * m}u) * ${SCORE_STRIDE}u + ${4 * n}u, subgroupMatrixMultiply<f32>(${name}${m}, r), ${SCORE_STRIDE}u);`,
          )
          .join('\n        ')} }`,
    )
    .join('\n      ');

/** sum`m` += weights · staged, over the 32 staged rows from j on. */
const weigh = (sum: string, weights: string, staged: string) =>
  range(2)
    .map(
      (
        n,
      ) => `{ let r = subgroupMatrixLoad<${RIGHT}, row_major>(&${staged}, (j + ${16 * n}u) * ${HEAD_STRIDE}u, ${HEAD_STRIDE}u);
        ${range(2)
          .map(
            (m) =>
              `${sum}${m} = subgroupMatrixMultiplyAccumulate(subgroupMatrixLoad<${LEFT}, row_major>(&${weights}, (own + ${16 * m}u) * ${WEIGHT_STRIDE}u + ${4 * n}u, ${WEIGHT_STRIDE}u), r, ${sum}${m});`,
          )
          .join('\n        ')} }`,
    )
    .join('\n      ');

const storeSums = (sum: string, into: string) =>
  range(2)
    .map(
      (m) =>
        `subgroupMatrixStore<row_major>(&${into}, (own + ${16 * m}u) * ${OUT_STRIDE}u, ${sum}${m}, ${OUT_STRIDE}u);`,
    )
    .join(' ');

/** Keys and values of CHUNK rows from `first` on; past the last, that one again. */
const stageKeys = (subgroups: number) => `
    workgroupBarrier();
    for (var e = index; e < ${CHUNK}u; e += ${32 * subgroups}u) {
      let at = kv_head + min(first + e, p.T - 1u) * p.stride;
      let k = (at + p.kOffset) / 8u;
      let v = (at + p.vOffset) / 8u;
      ${putRow('staged0', 'e', ['qkv[k]', 'qkv[k + 1u]'])}
      ${putRow('staged1', 'e', ['qkv[v]', 'qkv[v + 1u]'])}
    }
    workgroupBarrier();`;

const queryHeads = ({ H }: Params) => H;
const memory = (subgroups: number) => `${halvesOf(CHUNK * HEAD_STRIDE, 'staged0')}
${halvesOf(CHUNK * HEAD_STRIDE, 'staged1')}
${halvesOf(OWN * subgroups * HEAD_STRIDE, 'own0')}
${halvesOf(OWN * subgroups * WEIGHT_STRIDE, 'weights0')}
var<workgroup> scores0: array<vec4f, ${OWN * subgroups * SCORE_STRIDE}>;
var<workgroup> sums: array<vec4f, ${OWN * subgroups * OUT_STRIDE}>;`;
const memoryOfGradients = (subgroups: number) => `${memory(subgroups)}
${halvesOf(OWN * subgroups * HEAD_STRIDE, 'own1')}
var<workgroup> scores1: array<vec4f, ${OWN * subgroups * SCORE_STRIDE}>;`;

const quads = range(BLOCK / 4);

export function attentionForwardMatrix(subgroups: number): TiledVariant {
  return attentionMatrix(
    subgroups,
    ['out'],
    ['qkv'],
    `${memory(subgroups)}
fn tile(group: vec3u, local: vec3u, index: u32) {${queries(subgroups)}
  ${putRow('own0', '(own + lane)', ['qkv[q_at / 8u]', 'qkv[q_at / 8u + 1u]'])}
  workgroupBarrier();
  ${ownRows('q', 'own0')}
  let factor = scale * ${LOG2_E};
  var most = -1e30;
  var total = 0.0;
  ${range(4)
    .map((d) => `var o${d} = vec4f();`)
    .join(' ')}
  for (var first = 0u; first < all; first += ${CHUNK}u) {${stageKeys(subgroups)}
    for (var j = 0u; j < ${CHUNK}u && first + j < all; j += ${BLOCK}u) {
      ${scores('scores0', 'q', 'staged0')}
      workgroupBarrier();
      ${quads.map((c) => `var s${c} = scores0[(own + lane) * ${SCORE_STRIDE}u + ${c}u] * factor;`).join('\n      ')}
      if (first + j + ${BLOCK}u > seen) {
        ${quads.map((c) => `s${c} = select(vec4f(-1e30), s${c}, first + j + ${4 * c}u + vec4u(0u, 1u, 2u, 3u) < vec4u(seen));`).join('\n        ')}
      }
      ${quads.map((c) => (c === 0 ? 'var highest = s0;' : `highest = max(highest, s${c});`)).join(' ')}
      let before = most;
      most = max(most, max(max(highest.x, highest.y), max(highest.z, highest.w)));
      let shrink = exp2(before - most);
      var added = vec4f();
      ${quads.map((c) => `s${c} = exp2(s${c} - most); added += s${c};`).join('\n      ')}
      total = total * shrink + added.x + added.y + added.z + added.w;
      if (mask.threshold != 0u) {
        let from_key = i * p.T + first + j;
        ${quads
          .map((c) =>
            range(4)
              .map((n) => `s${c}[${n}] *= dropout_factor(mask, from_key + ${4 * c + n}u);`)
              .join(' '),
          )
          .join('\n        ')}
      }
      ${quads.map((c) => `weights0[(own + lane) * ${WEIGHT_STRIDE}u + ${c}u] = vec4<f16>(s${c});`).join('\n      ')}
      workgroupBarrier();
      var sum0 = ${RESULT}();
      var sum1 = ${RESULT}();
      ${weigh('sum', 'weights0', 'staged1')}
      ${storeSums('sum', 'sums')}
      workgroupBarrier();
      ${range(4)
        .map((d) => `o${d} = o${d} * shrink + sums[(own + lane) * ${OUT_STRIDE}u + ${d}u];`)
        .join(' ')}
    }
  }
  if (mine >= p.T) { return; }
  ${range(4)
    .map((d) => `out[o_at / 4u + ${d}u] = o${d} / total;`)
    .join(' ')}
  lse[i] = (most + log2(total)) * ${Math.LN2};
}`,
    queryHeads,
  );
}

export function attentionGradQMatrix(subgroups: number): TiledVariant {
  return attentionMatrix(
    subgroups,
    ['dout', 'dqkv'],
    ['qkv', 'out'],
    `${memoryOfGradients(subgroups)}
fn tile(group: vec3u, local: vec3u, index: u32) {${queries(subgroups)}
  ${putRow('own0', '(own + lane)', ['qkv[q_at / 8u]', 'qkv[q_at / 8u + 1u]'])}
  ${putFloats('own1', '(own + lane)', (d) => `dout[o_at / 4u + ${d}u]`)}
  var row_delta = 0.0;
  ${range(4)
    .map(
      (d) =>
        `row_delta += dot(dout[o_at / 4u + ${d}u], vec4f(${d % 2 ? 'high' : 'low'}(out[o_at / 8u + ${d >> 1}u])));`,
    )
    .join(' ')}
  let row_lse = lse[i] * ${LOG2_E};
  workgroupBarrier();
  ${ownRows('q', 'own0')}
  ${ownRows('d', 'own1')}
  let factor = scale * ${LOG2_E};
  var sum0 = ${RESULT}();
  var sum1 = ${RESULT}();
  for (var first = 0u; first < all; first += ${CHUNK}u) {${stageKeys(subgroups)}
    for (var j = 0u; j < ${CHUNK}u && first + j < all; j += ${BLOCK}u) {
      ${scores('scores0', 'q', 'staged0')}
      ${scores('scores1', 'd', 'staged1')}
      workgroupBarrier();
      let from_key = first + j;
      ${quads
        .map(
          (c) => `{
        let weight = exp2(scores0[(own + lane) * ${SCORE_STRIDE}u + ${c}u] * factor - row_lse);
        var dp = scores1[(own + lane) * ${SCORE_STRIDE}u + ${c}u];
        if (mask.threshold != 0u) { ${range(4)
          .map((n) => `dp[${n}] *= dropout_factor(mask, i * p.T + from_key + ${4 * c + n}u);`)
          .join(' ')} }
        let ds = select(vec4f(), weight * (dp - row_delta), from_key + ${4 * c}u + vec4u(0u, 1u, 2u, 3u) < vec4u(seen));
        weights0[(own + lane) * ${WEIGHT_STRIDE}u + ${c}u] = vec4<f16>(ds); }`,
        )
        .join('\n      ')}
      workgroupBarrier();
      ${weigh('sum', 'weights0', 'staged0')}
    }
  }
  ${storeSums('sum', 'sums')}
  workgroupBarrier();
  if (mine >= p.T) { return; }
  ${range(4)
    .map((d) => `dqkv[q_at / 4u + ${d}u] = sums[(own + lane) * ${OUT_STRIDE}u + ${d}u] * scale;`)
    .join(' ')}
  delta[i] = row_delta;
}`,
    queryHeads,
  );
}

export function attentionGradKVMatrix(subgroups: number): TiledVariant {
  return attentionMatrix(
    subgroups,
    ['dout', 'dqkv'],
    ['qkv'],
    `${memoryOfGradients(subgroups)}
${halvesOf(OWN * subgroups * WEIGHT_STRIDE, 'weights1')}
var<workgroup> staged_lse: array<vec4f, ${CHUNK / 4}>;
var<workgroup> staged_delta: array<vec4f, ${CHUNK / 4}>;
fn tile(group: vec3u, local: vec3u, index: u32) {${place(subgroups, 'p.H / groupSize')}
  let kv = group.y % (p.H / groupSize);
  let k_at = rows + kv * HD + t * p.stride + p.kOffset;
  let v_at = rows + kv * HD + t * p.stride + p.vOffset;
  ${putRow('own0', '(own + lane)', ['qkv[k_at / 8u]', 'qkv[k_at / 8u + 1u]'])}
  ${putRow('own1', '(own + lane)', ['qkv[v_at / 8u]', 'qkv[v_at / 8u + 1u]'])}
  workgroupBarrier();
  ${ownRows('k', 'own0')}
  ${ownRows('v', 'own1')}
  let scaled = scale * ${LOG2_E};
  // The first query that may see a key of this workgroup, rounded down to a block.
  let begin = select(0u, group.x * ${OWN * subgroups}u, p.causal != 0u);
  let earliest = select(0u, t, p.causal != 0u);
  var dk0 = ${RESULT}();
  var dk1 = ${RESULT}();
  var dv0 = ${RESULT}();
  var dv1 = ${RESULT}();
  for (var member = 0u; member < groupSize; member++) {
    let h = kv * groupSize + member;
    let row0 = (b * p.H + h) * p.T;
    for (var first = begin; first < p.T; first += ${CHUNK}u) {
      workgroupBarrier();
      for (var e = index; e < ${CHUNK}u; e += ${32 * subgroups}u) {
        let row = min(first + e, p.T - 1u);
        let q = (rows + h * HD + row * p.stride + p.qOffset) / 8u;
        let o = ((b * p.T + row) * p.H * HD + h * HD) / 4u;
        ${putRow('staged0', 'e', ['qkv[q]', 'qkv[q + 1u]'])}
        ${putFloats('staged1', 'e', (d) => `dout[o + ${d}u]`)}
        staged_lse[e / 4u][e % 4u] = lse[row0 + row] * ${LOG2_E};
        staged_delta[e / 4u][e % 4u] = delta[row0 + row];
      }
      workgroupBarrier();
      for (var j = 0u; j < ${CHUNK}u && first + j < p.T; j += ${BLOCK}u) {
        ${scores('scores0', 'k', 'staged0')}
        ${scores('scores1', 'v', 'staged1')}
        workgroupBarrier();
        let from_query = first + j;
        ${quads
          .map(
            (c) => `{
          let query = from_query + ${4 * c}u + vec4u(0u, 1u, 2u, 3u);
          let counts = (query < vec4u(p.T)) & (query >= vec4u(earliest));
          var weight = select(vec4f(), exp2(scores0[(own + lane) * ${SCORE_STRIDE}u + ${c}u] * scaled - staged_lse[j / 4u + ${c}u]), counts);
          var dp = scores1[(own + lane) * ${SCORE_STRIDE}u + ${c}u];
          var kept = vec4f(1.0);
          if (mask.threshold != 0u) { ${range(4)
            .map((n) => `kept[${n}] = dropout_factor(mask, (row0 + query[${n}]) * p.T + t);`)
            .join(' ')} }
          weights1[(own + lane) * ${WEIGHT_STRIDE}u + ${c}u] = vec4<f16>(weight * (dp * kept - staged_delta[j / 4u + ${c}u]));
          weights0[(own + lane) * ${WEIGHT_STRIDE}u + ${c}u] = vec4<f16>(weight * kept); }`,
          )
          .join('\n        ')}
        workgroupBarrier();
        ${weigh('dv', 'weights0', 'staged1')}
        ${weigh('dk', 'weights1', 'staged0')}
      }
    }
  }
  ${storeSums('dk', 'sums')}
  workgroupBarrier();
  if (mine < p.T) {
    ${range(4)
      .map((d) => `dqkv[k_at / 4u + ${d}u] = sums[(own + lane) * ${OUT_STRIDE}u + ${d}u] * scale;`)
      .join(' ')}
  }
  workgroupBarrier();
  ${storeSums('dv', 'sums')}
  workgroupBarrier();
  if (mine < p.T) {
    ${range(4)
      .map((d) => `dqkv[v_at / 4u + ${d}u] = sums[(own + lane) * ${OUT_STRIDE}u + ${d}u];`)
      .join(' ')}
  }
}`,
    ({ H, groupSize }) => H / groupSize,
  );
}
