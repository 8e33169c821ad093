import type { Kernel } from '../kernel.ts';
import { sigmoid, sigmoidWgsl } from '../sigmoid.ts';
import { elementwiseWgsl, stridedThreads } from '../strided.ts';

/**
 * The gradient of silu-mul, in the place of its input: gate becomes d·up·σ(gate)·(1 + gate·(1 − σ(gate))), up becomes
 * d·silu(gate), with d = dout[r, c].
 */
export const siluMulGrad: Kernel = {
  name: 'silu-mul-grad',
  operands: [
    { name: 'dout', dtype: 'f32', access: 'read' },
    { name: 'gu', dtype: 'f32', access: 'read_write' },
  ],
  params: [
    { name: 'R', type: 'u32' },
    { name: 'I', type: 'u32' },
  ],
  constants: [],
  threads: ({ R, I }) => stridedThreads(R * I),
  cost: ({ R, I }) => ({ flops: 11 * R * I, bytes: 20 * R * I }),
  run([dout, gu], { R, I }) {
    for (let r = 0; r < R; r++) {
      for (let c = 0; c < I; c++) {
        const at = 2 * r * I + c;
        const d = dout[r * I + c];
        const gate = gu[at];
        const s = sigmoid(gate);
        gu[at] = d * gu[at + I] * s * (1 + gate * (1 - s));
        gu[at + I] = d * gate * s;
      }
    }
  },
  wgsl: elementwiseWgsl(
    'p.R * p.I',
    `${sigmoidWgsl}
fn element(e: u32) {
  let at = e + e / p.I * p.I;
  let d = dout[e];
  let gate = gu[at];
  let s = sigmoid(gate);
  gu[at] = d * gu[at + p.I] * s * (1.0 + gate * (1.0 - s));
  gu[at + p.I] = d * gate * s;
}`,
  ),
};
