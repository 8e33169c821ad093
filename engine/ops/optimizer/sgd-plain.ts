import { CONTROL } from '../control.ts';
import type { Kernel } from '../kernel.ts';
import { stridedThreads } from '../strided.ts';
import { clipping } from './clipping.ts';
import { skipsUpdate } from './skip.ts';
import { halfUpdate, type UpdateRule, updateWgsl } from './update.ts';

const rule: UpdateRule = {
  before: `let lr = p.lr * control[${CONTROL.lrFactor}];`,
  each: 'param[e] -= lr * (clipped(g[e]) + p.weightDecay * param[e]);',
};

/** One step of PyTorch's SGD without momentum on n elements. A step that is not finite, or comes after a halt, changes nothing. */
export const sgdPlain: Kernel = {
  name: 'sgd-plain',
  operands: [
    { name: 'param', dtype: 'f32', access: 'read_write' },
    { name: 'g', dtype: 'f32', access: 'read' },
    { name: 'control', dtype: 'f32', access: 'read' },
  ],
  params: [
    { name: 'n', type: 'u32' },
    { name: 'offset', type: 'u32' },
    { name: 'lr', type: 'f32' },
    { name: 'weightDecay', type: 'f32' },
    { name: 'clipValue', type: 'f32' },
  ],
  constants: [],
  threads: ({ n }) => stridedThreads(n),
  cost: ({ n }) => ({ flops: 4 * n, bytes: 12 * n }),
  run(views, { n, offset, lr: ownLr, weightDecay, clipValue }) {
    const [param, g, control] = views as [Float32Array, Float32Array, Float32Array];
    if (skipsUpdate(control)) return;
    const lr = ownLr * control[CONTROL.lrFactor];
    const clip = clipping(control, clipValue);
    for (let e = offset; e < offset + n; e++) param[e] -= lr * (clip(g[e]) + weightDecay * param[e]);
  },
  wgsl: updateWgsl(rule),
};

/** The same on tensors of halves. */
export const sgdPlainHalf: Kernel = halfUpdate(sgdPlain, rule);
