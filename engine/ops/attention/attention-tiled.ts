import { pairMaskWgsl } from '../dropout/pair-mask.ts';
import type { Params, TiledVariant } from '../kernel.ts';
import { attentionForwardRows, attentionGradKVRows, attentionGradQRows, type RowsShape } from './attention-rows.ts';

/** Queries (keys in attention-grad-kv) of a workgroup: one a thread. */
const GROUP = 64;
/** float32 values of each of the two staged tensors: 64 rows of heads of 16, 8 rows of heads of 128. */
const STAGED = 1024;

/**
 * For real GPUs, beside the variant for narrow heads: a workgroup stages a chunk of the rows that all its threads go through, so that each value is fetched once
 * a workgroup and read four at a time. Arithmetic and order are those of the barrier-free variants.
 */
function attentionTiled(wgsl: string, heads: (params: Params) => number, narrow: readonly TiledVariant[]) {
  return {
    special: narrow,
    workgroupSize: [GROUP, 1, 1] as const,
    workgroups: (params: Params) => [Math.ceil(params.T / GROUP), params.B * heads(params), 1] as const,
    fits: ({ B, T, H, HD }: Params) => HD % 4 === 0 && B * H * T > 0 && B * H <= 65_535,
    wgsl: `${pairMaskWgsl}
const HD4 = HD / 4u;
const CHUNK = ${STAGED}u / HD;
var<workgroup> staged0: array<vec4f, ${STAGED / 4}>;
var<workgroup> staged1: array<vec4f, ${STAGED / 4}>;
fn qkv4(at: u32) -> vec4f { return vec4f(qkv[at], qkv[at + 1u], qkv[at + 2u], qkv[at + 3u]); }
${wgsl}`,
  };
}

/** Of narrow heads, without a mask and with one, which is workgroup memory too: a multiprocessor has little of that. */
const rowsShapes = (chunk: number, chunkBesideMask: number): readonly RowsShape[] => [
  { threads: 64, rows: 2, chunk, drops: false },
  { threads: 64, rows: 2, chunk: chunkBesideMask, drops: true },
];

const queryHeads = ({ H }: Params) => H;

const DOUT4 = `
fn dout4(at: u32) -> vec4f { return vec4f(dout[at], dout[at + 1u], dout[at + 2u], dout[at + 3u]); }`;

/** What a key has of dropout's mask. */
const COLUMNS = `
var<workgroup> columns: array<u32, CHUNK>;`;

/** What all three begin with: the batch of this workgroup, one of `heads`, and the row of this thread (or the last one). */
const place = (heads: string) => `
  let b = group.y / (${heads});
  let rows = b * p.T * p.stride;
  let scale = 1.0 / sqrt(f32(HD));
  let inside = group.x * ${GROUP}u + index < p.T;
  let t = min(group.x * ${GROUP}u + index, p.T - 1u);
  let mask = dropout_mask();`;

/** One of a workgroup per head of queries; its keys and values are of the head `kv_head`. */
const QUERIES = `${place('p.H')}
  let h = group.y % p.H;
  let i = group.y * p.T + t;
  let row = pair_row(mask, i);
  let kv_head = rows + h / groupSize * HD;
  let q_at = rows + h * HD + t * p.stride + p.qOffset;
  let o_at = (b * p.T + t) * p.H * HD + h * HD;`;

/** Stages keys and values of rows first … first + count − 1. */
const STAGE_KEYS = `
    let count = min(CHUNK, all - first);
    workgroupBarrier();
    for (var j = index; j < count * HD4; j += ${GROUP}u) {
      let at = kv_head + (first + j / HD4) * p.stride + j % HD4 * 4u;
      staged0[j] = qkv4(at + p.kOffset);
      staged1[j] = qkv4(at + p.vOffset);
    }
    if (mask.threshold != 0u) { for (var j = index; j < count; j += ${GROUP}u) { columns[j] = pair_column(mask, group.y * p.T + first + j); } }
    workgroupBarrier();
    let upto = min(count, max(mine, first) - first);`;

/** All keys that a thread of this workgroup needs, and those that this thread needs. */
const KEYS = `
  let all = select(p.T, min(p.T, (group.x + 1u) * ${GROUP}u), p.causal != 0u);
  let mine = select(p.T, t + 1u, p.causal != 0u);`;

export const attentionForwardTiled = attentionTiled(
  `${COLUMNS}
fn tile(group: vec3u, local: vec3u, index: u32) {${QUERIES}${KEYS}
  var q: array<vec4f, HD4>;
  var sums: array<vec4f, HD4>;
  for (var d = 0u; d < HD4; d++) { q[d] = qkv4(q_at + d * 4u) * scale; }
  var most = -1e30;
  var total = 0.0;
  for (var first = 0u; first < all; first += CHUNK) {${STAGE_KEYS}
    for (var j = 0u; j < upto; j++) {
      var s = 0.0;
      for (var d = 0u; d < HD4; d++) { s += dot(q[d], staged0[j * HD4 + d]); }
      if (s > most) {
        let shrink = exp(most - s);
        total *= shrink;
        for (var d = 0u; d < HD4; d++) { sums[d] *= shrink; }
        most = s;
      }
      let e = exp(s - most);
      total += e;
      var weight = e;
      if (mask.threshold != 0u) { weight *= pair_factor(mask, row, columns[j]); }
      for (var d = 0u; d < HD4; d++) { sums[d] += weight * staged1[j * HD4 + d]; }
    }
  }
  if (!inside) { return; }
  for (var d = 0u; d < HD4; d++) {
    let value = sums[d] / total;
    for (var c = 0u; c < 4u; c++) { out[o_at + d * 4u + c] = value[c]; }
  }
  lse[i] = most + log(total);
}`,
  queryHeads,
  rowsShapes(32, 32).map(attentionForwardRows),
);

export const attentionGradQTiled = attentionTiled(
  `${DOUT4}${COLUMNS}
fn tile(group: vec3u, local: vec3u, index: u32) {${QUERIES}${KEYS}
  var q: array<vec4f, HD4>;
  var dO: array<vec4f, HD4>;
  var sums: array<vec4f, HD4>;
  var row_delta = 0.0;
  for (var d = 0u; d < HD4; d++) {
    let at = o_at + d * 4u;
    q[d] = qkv4(q_at + d * 4u) * scale;
    dO[d] = dout4(at);
    row_delta += dot(dO[d], vec4f(out[at], out[at + 1u], out[at + 2u], out[at + 3u]));
  }
  let row_lse = lse[i];
  for (var first = 0u; first < all; first += CHUNK) {${STAGE_KEYS}
    for (var j = 0u; j < upto; j++) {
      var s = 0.0;
      var dp = 0.0;
      for (var d = 0u; d < HD4; d++) {
        s += dot(q[d], staged0[j * HD4 + d]);
        dp += dot(dO[d], staged1[j * HD4 + d]);
      }
      if (mask.threshold != 0u) { dp *= pair_factor(mask, row, columns[j]); }
      let ds = exp(s - row_lse) * (dp - row_delta);
      for (var d = 0u; d < HD4; d++) { sums[d] += ds * staged0[j * HD4 + d]; }
    }
  }
  if (!inside) { return; }
  delta[i] = row_delta;
  for (var d = 0u; d < HD4; d++) {
    let value = sums[d] * scale;
    for (var c = 0u; c < 4u; c++) { dqkv[q_at + d * 4u + c] = value[c]; }
  }
}`,
  queryHeads,
  rowsShapes(64, 32).map(attentionGradQRows),
);

export const attentionGradKVTiled = attentionTiled(
  `${DOUT4}
var<workgroup> staged_lse: array<f32, ${STAGED / 4}>;
var<workgroup> staged_delta: array<f32, ${STAGED / 4}>;
var<workgroup> mask_rows: array<vec2u, CHUNK>;
fn tile(group: vec3u, local: vec3u, index: u32) {${place('p.H / groupSize')}
  let kv = group.y % (p.H / groupSize);
  let k_at = rows + kv * HD + t * p.stride + p.kOffset;
  let v_at = rows + kv * HD + t * p.stride + p.vOffset;
  var k: array<vec4f, HD4>;
  var v: array<vec4f, HD4>;
  var dk: array<vec4f, HD4>;
  var dv: array<vec4f, HD4>;
  for (var d = 0u; d < HD4; d++) {
    k[d] = qkv4(k_at + d * 4u) * scale;
    v[d] = qkv4(v_at + d * 4u);
  }
  // The first query that may see a key of this workgroup, and of this thread.
  let begin = select(0u, group.x * ${GROUP}u, p.causal != 0u);
  let mine = select(0u, t, p.causal != 0u);
  for (var member = 0u; member < groupSize; member++) {
    let h = kv * groupSize + member;
    let row0 = (b * p.H + h) * p.T;
    let column = pair_column(mask, row0 + t);
    for (var first = begin; first < p.T; first += CHUNK) {
      let count = min(CHUNK, p.T - first);
      workgroupBarrier();
      for (var j = index; j < count * HD4; j += ${GROUP}u) {
        let row = first + j / HD4;
        staged0[j] = qkv4(rows + h * HD + row * p.stride + p.qOffset + j % HD4 * 4u);
        staged1[j] = dout4((b * p.T + row) * p.H * HD + h * HD + j % HD4 * 4u);
      }
      for (var j = index; j < count; j += ${GROUP}u) {
        staged_lse[j] = lse[row0 + first + j];
        staged_delta[j] = delta[row0 + first + j];
        if (mask.threshold != 0u) { mask_rows[j] = pair_row(mask, row0 + first + j); }
      }
      workgroupBarrier();
      for (var j = max(mine, first) - first; j < count; j++) {
        var s = 0.0;
        var dp = 0.0;
        for (var d = 0u; d < HD4; d++) {
          s += dot(k[d], staged0[j * HD4 + d]);
          dp += dot(v[d], staged1[j * HD4 + d]);
        }
        var factor = 1.0;
        if (mask.threshold != 0u) { factor = pair_factor(mask, mask_rows[j], column); }
        let probability = exp(s - staged_lse[j]);
        let ds = probability * (dp * factor - staged_delta[j]);
        let weight = probability * factor;
        for (var d = 0u; d < HD4; d++) {
          dk[d] += ds * staged0[j * HD4 + d];
          dv[d] += weight * staged1[j * HD4 + d];
        }
      }
    }
  }
  if (!inside) { return; }
  for (var d = 0u; d < HD4; d++) {
    let k_value = dk[d] * scale;
    for (var c = 0u; c < 4u; c++) {
      dqkv[k_at + d * 4u + c] = k_value[c];
      dqkv[v_at + d * 4u + c] = dv[d][c];
    }
  }
}`,
  ({ H, groupSize }) => H / groupSize,
  rowsShapes(64, 64).map(attentionGradKVRows),
);
