import { CONTROL } from '../control.ts';
import type { Kernel } from '../kernel.ts';
import { stridedThreads } from '../strided.ts';
import { clipping } from './clipping.ts';
import { skipsUpdate } from './skip.ts';
import { halfUpdate, type UpdateRule, updateWgsl } from './update.ts';
import { updateTiled } from './update-tiled.ts';

const rule: UpdateRule = {
  before: `
  let lr = p.lr * control[${CONTROL.lrFactor}];
  let stepSize = lr / control[${CONTROL.biasCorrection1}];
  let sqrtCorrection2 = control[${CONTROL.sqrtBiasCorrection2}];`,
  each: `
    var value = param[e];
    var gradient = clipped(g[e]);
    if (p.decoupled == 1u) { value *= 1.0 - lr * p.weightDecay; } else { gradient += p.weightDecay * value; }
    var moment = m[e];
    if (p.oneMinusBeta1 < 0.5) {
      moment += p.oneMinusBeta1 * (gradient - moment);
    } else {
      moment = gradient - p.beta1 * (gradient - moment);
    }
    let square = p.beta2 * v[e] + p.oneMinusBeta2 * gradient * gradient;
    m[e] = moment;
    v[e] = square;
    param[e] = value - stepSize * (moment / (sqrt(square) / sqrtCorrection2 + p.eps));`,
};

/**
 * One step of PyTorch's Adam (decoupled 0: the decay is added to the gradient) or AdamW (decoupled 1: the parameter shrinks
 * by lr · weightDecay) on n elements from `offset`. The rate is
 * `lr` times the control tensor's factor; bias corrections come from there too. Gradients are clipped as they are read. A step that is not
 * finite, or comes after a halt, changes nothing. 1 − β travel as parameters of their own, rounded once from double.
 */
export const adam: Kernel = {
  name: 'adam',
  operands: [
    { name: 'param', dtype: 'f32', access: 'read_write' },
    { name: 'm', dtype: 'f32', access: 'read_write' },
    { name: 'v', dtype: 'f32', access: 'read_write' },
    { name: 'g', dtype: 'f32', access: 'read' },
    { name: 'control', dtype: 'f32', access: 'read' },
  ],
  params: [
    { name: 'n', type: 'u32' },
    { name: 'offset', type: 'u32' },
    { name: 'lr', type: 'f32' },
    { name: 'beta1', type: 'f32' },
    { name: 'beta2', type: 'f32' },
    { name: 'oneMinusBeta1', type: 'f32' },
    { name: 'oneMinusBeta2', type: 'f32' },
    { name: 'eps', type: 'f32' },
    { name: 'weightDecay', type: 'f32' },
    { name: 'decoupled', type: 'u32' },
    { name: 'clipValue', type: 'f32' },
  ],
  constants: [],
  threads: ({ n }) => stridedThreads(n),
  cost: ({ n }) => ({ flops: 16 * n, bytes: 28 * n }),
  run(
    views,
    { n, offset, lr: ownLr, beta1, beta2, oneMinusBeta1, oneMinusBeta2, eps, weightDecay, decoupled, clipValue },
  ) {
    const [param, m, v, g, control] = views as [Float32Array, Float32Array, Float32Array, Float32Array, Float32Array];
    if (skipsUpdate(control)) return;
    const lr = ownLr * control[CONTROL.lrFactor];
    const clip = clipping(control, clipValue);
    const stepSize = lr / control[CONTROL.biasCorrection1];
    const sqrtCorrection2 = control[CONTROL.sqrtBiasCorrection2];
    // lerp as PyTorch has it: from the nearer end.
    const nearOld = oneMinusBeta1 < 0.5;
    for (let e = offset; e < offset + n; e++) {
      let value = param[e];
      let gradient = clip(g[e]);
      if (decoupled === 1) value *= 1 - lr * weightDecay;
      else gradient += weightDecay * value;
      const moment = nearOld ? m[e] + oneMinusBeta1 * (gradient - m[e]) : gradient - beta1 * (gradient - m[e]);
      const square = beta2 * v[e] + oneMinusBeta2 * gradient * gradient;
      m[e] = moment;
      v[e] = square;
      param[e] = value - (stepSize * moment) / (Math.sqrt(square) / sqrtCorrection2 + eps);
    }
  },
  wgsl: updateWgsl(rule),
  tiled: updateTiled(rule, ['param', 'm', 'v', 'g']),
};

/** The same on tensors of halves. */
export const adamHalf: Kernel = halfUpdate(adam, rule);
