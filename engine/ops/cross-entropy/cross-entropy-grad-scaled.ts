import { CONTROL } from '../control.ts';
import type { Kernel, View } from '../kernel.ts';
import { crossEntropyGrad } from './cross-entropy-grad.ts';

/** `crossEntropyGrad` times the loss scale in the control tensor: backward then runs on the scaled loss. */
export const crossEntropyGradScaled: Kernel = {
  ...crossEntropyGrad,
  name: 'cross-entropy-grad-scaled',
  tiled: undefined,
  operands: [...crossEntropyGrad.operands, { name: 'control', dtype: 'f32', access: 'read' }],
  run(views, params) {
    const control = views[3] as Float32Array;
    crossEntropyGrad.run(views.slice(0, 3) as View[], { ...params, scale: params.scale * control[CONTROL.lossScale] });
  },
  wgsl: crossEntropyGrad.wgsl.replace('* p.scale', `* (p.scale * control[${CONTROL.lossScale}])`),
};
