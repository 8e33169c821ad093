import { pairMaskWgsl } from '../dropout/pair-mask.ts';
import type { Params, TiledVariant } from '../kernel.ts';

const THREADS = 256;
/** Most rows of a short sequence, and most vec4s of its staged heads; a staged row is one longer than its head, against bank conflicts. */
const MOST_ROWS = 36;
const MOST_QUADS = 192;
/** Threads that share a row of scores. */
const LANES = 4;

/** Whether all scores of a head fit a workgroup's memory, and each head of queries has keys of its own. */
export function isShort({ T, HD, groupSize }: Params): boolean {
  return groupSize === 1 && HD % 4 === 0 && T > 0 && T <= MOST_ROWS && T * (HD / 4 + 1) <= MOST_QUADS;
}

function isAligned({ stride, qOffset, kOffset, vOffset }: Params): boolean {
  return [stride, qOffset, kOffset, vOffset].every((n) => n % 4 === 0);
}

/**
 * For real GPUs and short sequences: a workgroup has a head and holds all its scores, so that each step is spread over all
 * its threads; a thread a query leaves most of a GPU idle.
 */
function shortVariant(vectors: readonly string[], wgsl: string): TiledVariant {
  return {
    name: 'short',
    vectors,
    workgroupSize: [THREADS, 1, 1],
    workgroups: ({ B, H }) => [H, B, 1],
    fits: (params) => isShort(params) && isAligned(params) && params.H <= 65_535 && params.B <= 65_535,
    wgsl: `${pairMaskWgsl}
const HD4 = HD / 4u;
const ROW = HD4 + 1u;
var<workgroup> qs: array<vec4f, ${MOST_QUADS}>;
var<workgroup> ks: array<vec4f, ${MOST_QUADS}>;
var<workgroup> vs: array<vec4f, ${MOST_QUADS}>;
var<workgroup> scores: array<f32, ${MOST_ROWS * MOST_ROWS}>;
var<workgroup> mask_rows: array<vec2u, ${MOST_ROWS}>;
var<workgroup> mask_columns: array<u32, ${MOST_ROWS}>;
${wgsl}`,
  };
}

const PLACE = `
  let h = group.x;
  let b = group.y;
  let row0 = (b * p.H + h) * p.T;
  let scale = 1.0 / sqrt(f32(HD));
  let mask = dropout_mask();`;

/** Rows and columns of the mask are made by threads of warps of their own, since those of one wait for each other. */
const stage = (more: string) => `
  if (mask.threshold != 0u) {
    if (index < p.T) { mask_rows[index] = pair_row(mask, row0 + index); }
    if (index >= 64u && index < 64u + p.T) { mask_columns[index - 64u] = pair_column(mask, row0 + index - 64u); }
  }
  for (var j = index; j < p.T * HD4; j += ${THREADS}u) {
    let t = j / HD4;
    let d = j % HD4;
    let at = ((b * p.T + t) * p.stride + h * HD) / 4u + d;
    let to = t * ROW + d;
    qs[to] = qkv[at + p.qOffset / 4u] * scale;
    ks[to] = qkv[at + p.kOffset / 4u];
    vs[to] = qkv[at + p.vOffset / 4u];${more}
  }
  workgroupBarrier();`;

export const attentionForwardShort = shortVariant(
  ['qkv', 'out'],
  `
var<workgroup> parts: array<vec2f, ${MOST_ROWS * LANES}>;
fn tile(group: vec3u, local: vec3u, index: u32) {${PLACE}${stage('')}
  for (var e = index; e < p.T * p.T; e += ${THREADS}u) {
    var s = 0.0;
    for (var d = 0u; d < HD4; d++) { s += dot(qs[e / p.T * ROW + d], ks[e % p.T * ROW + d]); }
    scores[e] = s;
  }
  workgroupBarrier();
  // Each lane has a part of a row: its maximum and the sum of its exponentials.
  let row = index / ${LANES}u;
  let lane = index % ${LANES}u;
  let keys = select(p.T, row + 1u, p.causal != 0u);
  var most = -1e30;
  if (row < p.T) {
    for (var tk = lane; tk < keys; tk += ${LANES}u) { most = select(most, scores[row * p.T + tk], scores[row * p.T + tk] > most); }
    var total = 0.0;
    for (var tk = lane; tk < p.T; tk += ${LANES}u) {
      var e = 0.0;
      if (tk < keys) { e = exp(scores[row * p.T + tk] - most); }
      scores[row * p.T + tk] = e;
      total += e;
    }
    parts[index] = vec2f(most, total);
  }
  workgroupBarrier();
  if (row < p.T) {
    var all = vec2f(-1e30, 0.0);
    for (var i = 0u; i < ${LANES}u; i++) { all.x = max(all.x, parts[row * ${LANES}u + i].x); }
    for (var i = 0u; i < ${LANES}u; i++) {
      let part = parts[row * ${LANES}u + i];
      all.y += part.y * exp(part.x - all.x);
    }
    if (lane == 0u) { lse[row0 + row] = all.x + log(all.y); }
    let factor = exp(most - all.x) / all.y;
    for (var tk = lane; tk < p.T; tk += ${LANES}u) {
      var weight = scores[row * p.T + tk] * factor;
      if (mask.threshold != 0u) { weight *= pair_factor(mask, mask_rows[row], mask_columns[tk]); }
      scores[row * p.T + tk] = weight;
    }
  }
  workgroupBarrier();
  for (var j = index; j < p.T * HD4; j += ${THREADS}u) {
    let t = j / HD4;
    var sum = vec4f();
    for (var tk = 0u; tk < p.T; tk++) { sum += scores[t * p.T + tk] * vs[tk * ROW + j % HD4]; }
    out[((b * p.T + t) * p.H + h) * HD4 + j % HD4] = sum;
  }
}`,
);

export const attentionGradShort = shortVariant(
  ['qkv', 'out', 'dout', 'dqkv'],
  `
var<workgroup> ds: array<f32, ${MOST_ROWS * MOST_ROWS}>;
var<workgroup> douts: array<vec4f, ${MOST_QUADS}>;
var<workgroup> deltas: array<f32, ${MOST_QUADS}>;
var<workgroup> lses: array<f32, ${MOST_ROWS}>;
fn tile(group: vec3u, local: vec3u, index: u32) {${PLACE}
  if (index < p.T) { lses[index] = lse[row0 + index]; }${stage(`
    let o = ((b * p.T + t) * p.H + h) * HD4 + d;
    douts[to] = dout[o];
    deltas[to] = dot(dout[o], out[o]);`)}
  for (var e = index; e < p.T * p.T; e += ${THREADS}u) {
    let tq = e / p.T;
    let tk = e % p.T;
    var s = 0.0;
    var dp = 0.0;
    var delta = 0.0;
    for (var d = 0u; d < HD4; d++) {
      s += dot(qs[tq * ROW + d], ks[tk * ROW + d]);
      dp += dot(douts[tq * ROW + d], vs[tk * ROW + d]);
      delta += deltas[tq * ROW + d];
    }
    var probability = 0.0;
    if (p.causal == 0u || tk <= tq) { probability = exp(s - lses[tq]); }
    var factor = 1.0;
    if (mask.threshold != 0u) { factor = pair_factor(mask, mask_rows[tq], mask_columns[tk]); }
    scores[e] = probability * factor;
    ds[e] = probability * (dp * factor - delta);
  }
  workgroupBarrier();
  // A third of the results each: dq, dk, dv, four of a row at a time.
  let third = p.T * HD4;
  for (var j = index; j < 3u * third; j += ${THREADS}u) {
    let t = j % third / HD4;
    let d = j % HD4;
    var sum = vec4f();
    var to = ((b * p.T + t) * p.stride + h * HD) / 4u + d;
    if (j < third) {
      for (var tk = 0u; tk < p.T; tk++) { sum += ds[t * p.T + tk] * ks[tk * ROW + d]; }
      sum *= scale;
      to += p.qOffset / 4u;
    } else if (j < 2u * third) {
      for (var tq = 0u; tq < p.T; tq++) { sum += ds[tq * p.T + t] * qs[tq * ROW + d]; }
      to += p.kOffset / 4u;
    } else {
      for (var tq = 0u; tq < p.T; tq++) { sum += scores[tq * p.T + t] * douts[tq * ROW + d]; }
      to += p.vOffset / 4u;
    }
    dqkv[to] = sum;
  }
}`,
);
