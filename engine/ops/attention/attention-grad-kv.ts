import { dropoutMask } from '../dropout/dropout-mask.ts';
import { pairFactor, pairMask, pairMaskWgsl } from '../dropout/pair-mask.ts';
import type { Kernel } from '../kernel.ts';
import { attentionConstants, attentionPairs, attentionParams } from './attention-params.ts';
import { attentionGradKVTiled } from './attention-tiled.ts';

/** WGSL: `fn gradKV(i: u32)`, one thread a key; `delta` is the expression of the delta of row row0 + tq, whose output gradient begins at o_at. */
export const attentionGradKVWgsl = (delta: string) => `
fn gradKV(i: u32) {
  let tk = i % p.T;
  let kv = i / p.T % (p.H / groupSize);
  let b = i / p.T / (p.H / groupSize);
  let scale = 1.0 / sqrt(f32(HD));
  let rows = b * p.T * p.stride;
  let k_at = rows + kv * HD + tk * p.stride + p.kOffset;
  let v_at = rows + kv * HD + tk * p.stride + p.vOffset;
  var k: array<f32, HD>;
  var v: array<f32, HD>;
  var dk: array<f32, HD>;
  var dv: array<f32, HD>;
  for (var d = 0u; d < HD; d++) {
    k[d] = qkv[k_at + d] * scale;
    v[d] = qkv[v_at + d];
  }
  let mask = dropout_mask();
  let first = select(0u, tk, p.causal != 0u);
  for (var member = 0u; member < groupSize; member++) {
    let h = kv * groupSize + member;
    let row0 = (b * p.H + h) * p.T;
    let column = pair_column(mask, row0 + tk);
    for (var tq = first; tq < p.T; tq++) {
      let q_at = rows + h * HD + tq * p.stride + p.qOffset;
      let o_at = (b * p.T + tq) * p.H * HD + h * HD;
      var s = 0.0;
      var dp = 0.0;
      for (var d = 0u; d < HD; d++) {
        s += k[d] * qkv[q_at + d];
        dp += v[d] * dout[o_at + d];
      }
      var factor = 1.0;
      if (mask.threshold != 0u) { factor = pair_factor(mask, pair_row(mask, row0 + tq), column); }
      let probability = exp(s - lse[row0 + tq]);
      let ds = probability * (dp * factor - ${delta});
      let weight = probability * factor;
      for (var d = 0u; d < HD; d++) {
        dk[d] += ds * qkv[q_at + d];
        dv[d] += weight * dout[o_at + d];
      }
    }
  }
  for (var d = 0u; d < HD; d++) {
    dqkv[k_at + d] = dk[d] * scale;
    dqkv[v_at + d] = dv[d];
  }
}
`;

/**
 * The gradients of attention with respect to k and v, written to their parts of dqkv, from attention-grad-q's delta. One
 * thread has a key and adds what all heads of queries that share it give, in their order.
 */
export const attentionGradKV: Kernel = {
  name: 'attention-grad-kv',
  operands: [
    { name: 'qkv', dtype: 'f32', access: 'read' },
    { name: 'control', dtype: 'f32', access: 'read' },
    { name: 'dout', dtype: 'f32', access: 'read' },
    { name: 'lse', dtype: 'f32', access: 'read' },
    { name: 'delta', dtype: 'f32', access: 'read' },
    { name: 'dqkv', dtype: 'f32', access: 'read_write' },
  ],
  params: attentionParams,
  constants: attentionConstants,
  threads: ({ B, T, H, groupSize }) => ((B * H) / groupSize) * T,
  cost: ({ B, T, H, HD, groupSize, causal }) => ({
    flops: (8 * HD + 5) * attentionPairs(B, T, H, causal),
    bytes: 4 * B * T * H * (2 * HD + (4 * HD) / groupSize + 2),
  }),
  run([qkv, control, dout, lse, delta, dqkv], params) {
    const { B, T, H, HD, groupSize, stride, qOffset, kOffset, vOffset, causal } = params;
    const scale = 1 / Math.sqrt(HD);
    const mask = dropoutMask(control, params);
    const dk = new Float64Array(HD);
    const dv = new Float64Array(HD);
    for (let b = 0; b < B; b++) {
      for (let kv = 0; kv < H / groupSize; kv++) {
        const pairs = Array.from({ length: groupSize }, (_, m) => pairMask(mask, (b * H + kv * groupSize + m) * T, T));
        for (let tk = 0; tk < T; tk++) {
          const k = (b * T + tk) * stride + kOffset + kv * HD;
          const v = (b * T + tk) * stride + vOffset + kv * HD;
          dk.fill(0);
          dv.fill(0);
          for (let h = kv * groupSize; h < (kv + 1) * groupSize; h++) {
            for (let tq = causal ? tk : 0; tq < T; tq++) {
              const at = (b * H + h) * T + tq;
              const q = (b * T + tq) * stride + qOffset + h * HD;
              const o = (b * T + tq) * H * HD + h * HD;
              let s = 0;
              let dp = 0;
              for (let d = 0; d < HD; d++) {
                s += qkv[q + d] * qkv[k + d];
                dp += dout[o + d] * qkv[v + d];
              }
              const factor = pairFactor(pairs[h - kv * groupSize], tq, tk);
              const probability = Math.exp(s * scale - lse[at]);
              const ds = probability * (dp * factor - delta[at]);
              for (let d = 0; d < HD; d++) {
                dk[d] += ds * qkv[q + d];
                dv[d] += probability * factor * dout[o + d];
              }
            }
          }
          for (let d = 0; d < HD; d++) {
            dqkv[k + d] = dk[d] * scale;
            dqkv[v + d] = dv[d];
          }
        }
      }
    }
  },
  wgsl: `${pairMaskWgsl}${attentionGradKVWgsl('delta[row0 + tq]')}
fn kernel(i: u32) { gradKV(i); }`,
  tiled: attentionGradKVTiled,
};
