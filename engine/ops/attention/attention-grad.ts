import { pairMaskWgsl } from '../dropout/pair-mask.ts';
import type { Kernel } from '../kernel.ts';
import { attentionGradKV, attentionGradKVWgsl } from './attention-grad-kv.ts';
import { attentionGradQ, attentionGradQWgsl } from './attention-grad-q.ts';
import { attentionConstants, attentionParams } from './attention-params.ts';
import { attentionGradShort } from './attention-short.ts';

/**
 * All of attention's gradients, dqkv in the layout of qkv, in one dispatch: for short sequences, where Σ_d dout·out is
 * sooner computed again for each pair than handed over. The first threads have a query each, the others a key.
 */
export const attentionGrad: Kernel = {
  name: 'attention-grad',
  operands: [
    { name: 'qkv', dtype: 'f32', access: 'read' },
    { name: 'control', dtype: 'f32', access: 'read' },
    { name: 'out', dtype: 'f32', access: 'read' },
    { name: 'dout', dtype: 'f32', access: 'read' },
    { name: 'lse', dtype: 'f32', access: 'read' },
    { name: 'dqkv', dtype: 'f32', access: 'read_write' },
  ],
  params: attentionParams,
  constants: attentionConstants,
  threads: ({ B, T, H, groupSize }) => B * H * T + ((B * H) / groupSize) * T,
  cost(params) {
    const { B, T, H, HD, groupSize } = params;
    const flops = attentionGradQ.cost(params).flops + attentionGradKV.cost(params).flops;
    return { flops, bytes: 4 * B * T * H * (3 * HD + (4 * HD) / groupSize + 1) };
  },
  run([qkv, control, out, dout, lse, dqkv], params) {
    const delta = new Float32Array(lse.length);
    attentionGradQ.run([qkv, control, out, dout, lse, dqkv, delta], params);
    attentionGradKV.run([qkv, control, dout, lse, delta, dqkv], params);
  },
  wgsl: `${pairMaskWgsl}${attentionGradQWgsl('')}
fn deltaOf(at: u32) -> f32 {
  var sum = 0.0;
  for (var d = 0u; d < HD; d++) { sum += dout[at + d] * out[at + d]; }
  return sum;
}
${attentionGradKVWgsl('deltaOf(o_at)')}
fn kernel(i: u32) {
  let queries = p.B * p.H * p.T;
  if (i < queries) { gradQ(i); } else { gradKV(i - queries); }
}`,
  tiled: attentionGradShort,
};
