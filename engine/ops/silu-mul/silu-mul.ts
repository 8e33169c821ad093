import type { Kernel } from '../kernel.ts';
import { sigmoid, sigmoidWgsl } from '../sigmoid.ts';
import { elementwiseWgsl, stridedThreads } from '../strided.ts';

/** out[r, c] = silu(gate)·up, silu(x) = x·σ(x), with gate = gu[r, c] and up = gu[r, I + c]: R rows of 2·I (Shazeer 2020). */
export const siluMul: Kernel = {
  name: 'silu-mul',
  operands: [
    { name: 'gu', dtype: 'f32', access: 'read' },
    { name: 'out', dtype: 'f32', access: 'write' },
  ],
  params: [
    { name: 'R', type: 'u32' },
    { name: 'I', type: 'u32' },
  ],
  constants: [],
  threads: ({ R, I }) => stridedThreads(R * I),
  cost: ({ R, I }) => ({ flops: 6 * R * I, bytes: 12 * R * I }),
  run([gu, out], { R, I }) {
    for (let r = 0; r < R; r++) {
      for (let c = 0; c < I; c++) {
        const gate = gu[2 * r * I + c];
        out[r * I + c] = gate * sigmoid(gate) * gu[(2 * r + 1) * I + c];
      }
    }
  },
  wgsl: elementwiseWgsl(
    'p.R * p.I',
    `${sigmoidWgsl}
fn element(e: u32) {
  let at = e + e / p.I * p.I;
  let gate = gu[at];
  out[e] = gate * sigmoid(gate) * gu[at + p.I];
}`,
  ),
};
