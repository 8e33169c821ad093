import { CONTROL } from '../control.ts';
import type { Kernel } from '../kernel.ts';
import { stridedThreads } from '../strided.ts';
import { clipping } from './clipping.ts';
import { skipsUpdate } from './skip.ts';
import { halfUpdate, type UpdateRule, updateWgsl } from './update.ts';

const rule: UpdateRule = {
  before: `let lr = p.lr * control[${CONTROL.lrFactor}];
  let isFirst = control[${CONTROL.t}] == 1.0;`,
  each: `
    let gradient = clipped(g[e]) + p.weightDecay * param[e];
    var velocity = gradient;
    if (!isFirst) { velocity += p.momentum * buf[e]; }
    buf[e] = velocity;
    var change = velocity;
    if (p.nesterov == 1u) { change = gradient + p.momentum * velocity; }
    param[e] -= lr * change;`,
};

/**
 * One step of PyTorch's SGD with momentum (dampening 0) on n elements: the first step (t = 1) starts the buffer with the
 * gradient. A step that is not finite, or comes after a halt, changes nothing.
 */
export const sgd: Kernel = {
  name: 'sgd',
  operands: [
    { name: 'param', dtype: 'f32', access: 'read_write' },
    { name: 'buf', dtype: 'f32', access: 'read_write' },
    { name: 'g', dtype: 'f32', access: 'read' },
    { name: 'control', dtype: 'f32', access: 'read' },
  ],
  params: [
    { name: 'n', type: 'u32' },
    { name: 'offset', type: 'u32' },
    { name: 'lr', type: 'f32' },
    { name: 'momentum', type: 'f32' },
    { name: 'weightDecay', type: 'f32' },
    { name: 'nesterov', type: 'u32' },
    { name: 'clipValue', type: 'f32' },
  ],
  constants: [],
  threads: ({ n }) => stridedThreads(n),
  cost: ({ n }) => ({ flops: 8 * n, bytes: 20 * n }),
  run(views, { n, offset, lr: ownLr, momentum, weightDecay, nesterov, clipValue }) {
    const [param, buf, g, control] = views as [Float32Array, Float32Array, Float32Array, Float32Array];
    if (skipsUpdate(control)) return;
    const lr = ownLr * control[CONTROL.lrFactor];
    const clip = clipping(control, clipValue);
    const isFirst = control[CONTROL.t] === 1;
    for (let e = offset; e < offset + n; e++) {
      const gradient = clip(g[e]) + weightDecay * param[e];
      const velocity = isFirst ? gradient : momentum * buf[e] + gradient;
      buf[e] = velocity;
      param[e] -= lr * (nesterov === 1 ? gradient + momentum * velocity : velocity);
    }
  },
  wgsl: updateWgsl(rule),
};

/** The same on tensors of halves. */
export const sgdHalf: Kernel = halfUpdate(sgd, rule);
