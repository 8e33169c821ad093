import { isFiniteWgsl } from '../finite.ts';
import type { Kernel } from '../kernel.ts';
import { elementwiseWgsl, stridedThreads } from '../strided.ts';

/**
 * Gradient of the loss in the logits, in their place: (softmax − one-hot of the target) · scale for the first V of the `ld`
 * columns of each row, 0 for the padding after them. The R rows begin with row `firstRow` of targets and lse. Where lse is not finite the gradient is lse itself, whatever exp makes of it:
 * that is what tells the optimizer to skip.
 */
export const crossEntropyGrad: Kernel = {
  name: 'cross-entropy-grad',
  operands: [
    { name: 'logits', dtype: 'f32', access: 'read_write' },
    { name: 'targets', dtype: 'u32', access: 'read' },
    { name: 'lse', dtype: 'f32', access: 'read' },
  ],
  params: [
    { name: 'R', type: 'u32' },
    { name: 'V', type: 'u32' },
    { name: 'ld', type: 'u32' },
    { name: 'firstRow', type: 'u32' },
    { name: 'scale', type: 'f32' },
  ],
  constants: [],
  threads: ({ R, ld }) => stridedThreads(R * ld),
  cost: ({ R, V, ld }) => ({ flops: 4 * R * V, bytes: 8 * R * ld }),
  run(views, { R, V, ld, firstRow, scale }) {
    const [logits, targets, lse] = views as [Float32Array, Uint32Array, Float32Array];
    for (let row = 0; row < R; row++) {
      const base = row * ld;
      const logSum = lse[firstRow + row];
      const target = targets[firstRow + row];
      if (!Number.isFinite(logSum)) logits.fill(logSum, base, base + V);
      else
        for (let c = 0; c < V; c++) {
          logits[base + c] = (Math.exp(logits[base + c] - logSum) - (c === target ? 1 : 0)) * scale;
        }
      logits.fill(0, base + V, base + ld);
    }
  },
  wgsl: elementwiseWgsl(
    'p.R * p.ld',
    `${isFiniteWgsl}
fn element(e: u32) {
  let row = e / p.ld;
  let c = e - row * p.ld;
  var d = 0.0;
  if (c < p.V) {
    let at = p.firstRow + row;
    let total = lse[at];
    if (isFinite(total)) { d = (exp(logits[e] - total) - select(0.0, 1.0, c == targets[at])) * p.scale; } else { d = total; }
  }
  logits[e] = d;
}`,
  ),
};
