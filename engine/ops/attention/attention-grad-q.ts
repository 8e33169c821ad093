import { dropoutMask } from '../dropout/dropout-mask.ts';
import { pairFactor, pairMask, pairMaskWgsl } from '../dropout/pair-mask.ts';
import type { Kernel } from '../kernel.ts';
import { attentionConstants, attentionPairs, attentionParams } from './attention-params.ts';
import { attentionGradQTiled } from './attention-tiled.ts';

/** WGSL: `fn gradQ(i: u32)`, one thread a query; `keep` is what it does with row_delta. */
export const attentionGradQWgsl = (keep: string) => `
fn gradQ(i: u32) {
  let tq = i % p.T;
  let h = i / p.T % p.H;
  let b = i / p.T / p.H;
  let scale = 1.0 / sqrt(f32(HD));
  let rows = b * p.T * p.stride;
  let kv_head = rows + h / groupSize * HD;
  let q_at = rows + h * HD + tq * p.stride + p.qOffset;
  let o_at = (b * p.T + tq) * p.H * HD + h * HD;
  var q: array<f32, HD>;
  var dO: array<f32, HD>;
  var sums: array<f32, HD>;
  var row_delta = 0.0;
  for (var d = 0u; d < HD; d++) {
    q[d] = qkv[q_at + d] * scale;
    dO[d] = dout[o_at + d];
    row_delta += dO[d] * out[o_at + d];
  }
  ${keep}
  let mask = dropout_mask();
  let row = pair_row(mask, i);
  let row_lse = lse[i];
  let keys = select(p.T, tq + 1u, p.causal != 0u);
  var k_at = kv_head + p.kOffset;
  var v_at = kv_head + p.vOffset;
  for (var tk = 0u; tk < keys; tk++) {
    var s = 0.0;
    var dp = 0.0;
    for (var d = 0u; d < HD; d++) {
      s += q[d] * qkv[k_at + d];
      dp += dO[d] * qkv[v_at + d];
    }
    if (mask.threshold != 0u) { dp *= pair_factor(mask, row, pair_column(mask, i - tq + tk)); }
    let ds = exp(s - row_lse) * (dp - row_delta);
    for (var d = 0u; d < HD; d++) { sums[d] += ds * qkv[k_at + d]; }
    k_at += p.stride;
    v_at += p.stride;
  }
  for (var d = 0u; d < HD; d++) { dqkv[q_at + d] = sums[d] * scale; }
}
`;

/**
 * The gradient of attention with respect to q, written to the q part of dqkv (layout of qkv), and for attention-grad-kv
 * delta[(b·H + h)·T + tq] = Σ_d dout·out. Probabilities are computed again from lse.
 */
export const attentionGradQ: Kernel = {
  name: 'attention-grad-q',
  operands: [
    { name: 'qkv', dtype: 'f32', access: 'read' },
    { name: 'control', dtype: 'f32', access: 'read' },
    { name: 'out', dtype: 'f32', access: 'read' },
    { name: 'dout', dtype: 'f32', access: 'read' },
    { name: 'lse', dtype: 'f32', access: 'read' },
    { name: 'dqkv', dtype: 'f32', access: 'read_write' },
    { name: 'delta', dtype: 'f32', access: 'write' },
  ],
  params: attentionParams,
  constants: attentionConstants,
  threads: ({ B, T, H }) => B * H * T,
  cost: ({ B, T, H, HD, groupSize, causal }) => ({
    flops: (6 * HD + 5) * attentionPairs(B, T, H, causal),
    bytes: 4 * B * T * H * (4 * HD + (2 * HD) / groupSize + 2),
  }),
  run([qkv, control, out, dout, lse, dqkv, delta], params) {
    const { B, T, H, HD, groupSize, stride, qOffset, kOffset, vOffset, causal } = params;
    const scale = 1 / Math.sqrt(HD);
    const mask = dropoutMask(control, params);
    const sums = new Float64Array(HD);
    for (let b = 0; b < B; b++) {
      for (let h = 0; h < H; h++) {
        const pairs = pairMask(mask, (b * H + h) * T, T);
        for (let tq = 0; tq < T; tq++) {
          const at = (b * H + h) * T + tq;
          const q = (b * T + tq) * stride + qOffset + h * HD;
          const kv = Math.floor(h / groupSize) * HD;
          const o = (b * T + tq) * H * HD + h * HD;
          let rowDelta = 0;
          for (let d = 0; d < HD; d++) rowDelta += dout[o + d] * out[o + d];
          delta[at] = rowDelta;
          sums.fill(0);
          const keys = causal ? tq + 1 : T;
          for (let tk = 0; tk < keys; tk++) {
            const k = (b * T + tk) * stride + kOffset + kv;
            const v = (b * T + tk) * stride + vOffset + kv;
            let s = 0;
            let dp = 0;
            for (let d = 0; d < HD; d++) {
              s += qkv[q + d] * qkv[k + d];
              dp += dout[o + d] * qkv[v + d];
            }
            const probability = Math.exp(s * scale - lse[at]);
            const ds = probability * (dp * pairFactor(pairs, tq, tk) - rowDelta);
            for (let d = 0; d < HD; d++) sums[d] += ds * qkv[k + d];
          }
          for (let d = 0; d < HD; d++) dqkv[q + d] = sums[d] * scale;
        }
      }
    }
  },
  wgsl: `${pairMaskWgsl}${attentionGradQWgsl('delta[i] = row_delta;')}
fn kernel(i: u32) { gradQ(i); }`,
  tiled: attentionGradQTiled,
};
