import { dropoutMask } from '../dropout/dropout-mask.ts';
import { pairFactor, pairMask, pairMaskWgsl } from '../dropout/pair-mask.ts';
import type { Kernel } from '../kernel.ts';
import { attentionConstants, attentionPairs, attentionParams } from './attention-params.ts';
import { attentionForwardShort } from './attention-short.ts';
import { attentionForwardTiled } from './attention-tiled.ts';

/**
 * out[b·T + tq, h·HD + d] = Σ_tk dropout(softmax_tk(q·k/√HD))·v over the keys tk (tk ≤ tq if `causal`), with q, k and v
 * packed in the rows of qkv: q of head h at row·stride + qOffset + h·HD, k and v of head ⌊h/groupSize⌋ likewise. lse[(b·H + h)·T + tq] keeps the
 * log of the softmax's denominator for backward. Online softmax: one pass over the keys.
 */
export const attention: Kernel = {
  name: 'attention',
  operands: [
    { name: 'qkv', dtype: 'f32', access: 'read' },
    { name: 'control', dtype: 'f32', access: 'read' },
    { name: 'out', dtype: 'f32', access: 'write' },
    { name: 'lse', dtype: 'f32', access: 'write' },
  ],
  params: attentionParams,
  constants: attentionConstants,
  threads: ({ B, T, H }) => B * H * T,
  cost: ({ B, T, H, HD, groupSize, causal }) => ({
    flops: (4 * HD + 4) * attentionPairs(B, T, H, causal),
    bytes: 4 * B * T * H * (2 * HD + (2 * HD) / groupSize + 1),
  }),
  run([qkv, control, out, lse], params) {
    const { B, T, H, HD, groupSize, stride, qOffset, kOffset, vOffset, causal } = params;
    const scale = 1 / Math.sqrt(HD);
    const mask = dropoutMask(control, params);
    const weights = new Float64Array(T);
    const sums = new Float64Array(HD);
    for (let b = 0; b < B; b++) {
      for (let h = 0; h < H; h++) {
        const pairs = pairMask(mask, (b * H + h) * T, T);
        for (let tq = 0; tq < T; tq++) {
          const at = (b * H + h) * T + tq;
          const q = (b * T + tq) * stride + qOffset + h * HD;
          const kv = Math.floor(h / groupSize) * HD;
          const keys = causal ? tq + 1 : T;
          let most = -1e30;
          for (let tk = 0; tk < keys; tk++) {
            const k = (b * T + tk) * stride + kOffset + kv;
            let s = 0;
            for (let d = 0; d < HD; d++) s += qkv[q + d] * qkv[k + d];
            weights[tk] = s * scale;
            if (weights[tk] > most) most = weights[tk];
          }
          let total = 0;
          sums.fill(0);
          for (let tk = 0; tk < keys; tk++) {
            const e = Math.exp(weights[tk] - most);
            total += e;
            const factor = e * pairFactor(pairs, tq, tk);
            const v = (b * T + tk) * stride + vOffset + kv;
            for (let d = 0; d < HD; d++) sums[d] += factor * qkv[v + d];
          }
          const o = (b * T + tq) * H * HD + h * HD;
          for (let d = 0; d < HD; d++) out[o + d] = sums[d] / total;
          lse[at] = most + Math.log(total);
        }
      }
    }
  },
  wgsl: `${pairMaskWgsl}
fn kernel(i: u32) {
  let tq = i % p.T;
  let h = i / p.T % p.H;
  let b = i / p.T / p.H;
  let scale = 1.0 / sqrt(f32(HD));
  let rows = b * p.T * p.stride;
  let kv_head = rows + h / groupSize * HD;
  let q_at = rows + h * HD + tq * p.stride + p.qOffset;
  var q: array<f32, HD>;
  var sums: array<f32, HD>;
  for (var d = 0u; d < HD; d++) { q[d] = qkv[q_at + d] * scale; }
  let mask = dropout_mask();
  let row = pair_row(mask, i);
  let keys = select(p.T, tq + 1u, p.causal != 0u);
  var most = -1e30;
  var total = 0.0;
  var k_at = kv_head + p.kOffset;
  var v_at = kv_head + p.vOffset;
  for (var tk = 0u; tk < keys; tk++) {
    var s = 0.0;
    for (var d = 0u; d < HD; d++) { s += q[d] * qkv[k_at + d]; }
    if (s > most) {
      let shrink = exp(most - s);
      total *= shrink;
      for (var d = 0u; d < HD; d++) { sums[d] *= shrink; }
      most = s;
    }
    let e = exp(s - most);
    total += e;
    var weight = e;
    if (mask.threshold != 0u) { weight *= pair_factor(mask, row, pair_column(mask, i - tq + tk)); }
    for (var d = 0u; d < HD; d++) { sums[d] += weight * qkv[v_at + d]; }
    k_at += p.stride;
    v_at += p.stride;
  }
  let o = (b * p.T + tq) * p.H * HD + h * HD;
  for (var d = 0u; d < HD; d++) { out[o + d] = sums[d] / total; }
  lse[i] = most + log(total);
}`,
  tiled: { ...attentionForwardTiled, special: [attentionForwardShort, ...attentionForwardTiled.special] },
};
