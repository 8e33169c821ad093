import { CONTROL } from '../control.ts';
import type { Kernel } from '../kernel.ts';
import { stridedThreads, stridedWgsl } from '../strided.ts';
import { skipsUpdate, skipsUpdateWgsl } from './skip.ts';

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
    { name: 'momentum', type: 'f32' },
    { name: 'weightDecay', type: 'f32' },
    { name: 'nesterov', type: 'u32' },
  ],
  constants: [],
  threads: ({ n }) => stridedThreads(n),
  cost: ({ n }) => ({ flops: 8 * n, bytes: 20 * n }),
  run(views, { n, momentum, weightDecay, nesterov }) {
    const [param, buf, g, control] = views as [Float32Array, Float32Array, Float32Array, Float32Array];
    if (skipsUpdate(control)) return;
    const lr = control[CONTROL.lr];
    const isFirst = control[CONTROL.t] === 1;
    for (let e = 0; e < n; e++) {
      const gradient = g[e] + weightDecay * param[e];
      const velocity = isFirst ? gradient : momentum * buf[e] + gradient;
      buf[e] = velocity;
      param[e] -= lr * (nesterov === 1 ? gradient + momentum * velocity : velocity);
    }
  },
  wgsl: `${stridedWgsl()}${skipsUpdateWgsl}
fn kernel(i: u32) {
  if (skipsUpdate()) { return; }
  let lr = control[${CONTROL.lr}];
  let isFirst = control[${CONTROL.t}] == 1.0;
  let end = min(p.n, stridedEnd(i));
  for (var e = stridedFirst(i); e < end; e += STRIDE) {
    let gradient = g[e] + p.weightDecay * param[e];
    var velocity = gradient;
    if (!isFirst) { velocity += p.momentum * buf[e]; }
    buf[e] = velocity;
    var change = velocity;
    if (p.nesterov == 1u) { change = gradient + p.momentum * velocity; }
    param[e] -= lr * change;
  }
}
`,
};
