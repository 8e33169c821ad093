import { CONTROL } from '../control.ts';
import { fixedSumWgsl } from '../fixed-sum.ts';
import type { Kernel } from '../kernel.ts';

/** control.loss = (accumulate ? control.loss : 0) + scale · Σ rowLoss: with scale 1 / (rows · micro-batches), a mean. */
export const lossMean: Kernel = {
  name: 'loss-mean',
  operands: [
    { name: 'rowLoss', dtype: 'f32', access: 'read' },
    { name: 'control', dtype: 'f32', access: 'read_write' },
  ],
  params: [
    { name: 'R', type: 'u32' },
    { name: 'scale', type: 'f32' },
    { name: 'accumulate', type: 'u32' },
  ],
  constants: [],
  threads: () => 1,
  cost: ({ R }) => ({ flops: R, bytes: 4 * R }),
  run(views, { R, scale, accumulate }) {
    const [rowLoss, control] = views as [Float32Array, Float32Array];
    let sum = 0;
    for (let row = 0; row < R; row++) sum += rowLoss[row];
    control[CONTROL.loss] = (accumulate === 1 ? control[CONTROL.loss] : 0) + scale * sum;
  },
  wgsl: `${fixedSumWgsl('sumOf', 'rowLoss[at]')}
fn kernel(i: u32) {
  var loss = p.scale * sumOf(0u, p.R);
  if (p.accumulate == 1u) { loss += control[${CONTROL.loss}]; }
  control[${CONTROL.loss}] = loss;
}
`,
};
