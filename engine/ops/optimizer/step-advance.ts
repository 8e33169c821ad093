import { CONTROL } from '../control.ts';
import { isFiniteWgsl } from '../finite.ts';
import type { Kernel } from '../kernel.ts';
import { advance, advanceWgsl } from './advance.ts';

/**
 * Opens an optimizer step whose updates run before its norm is known: nothing is clipped by norm, and the run stops at a
 * step that is not finite. A loss that is not finite halts it here, before anything is updated; otherwise, unless halted,
 * t and the bias corrections advance. `stepNorm` ends the step.
 */
export const stepAdvance: Kernel = {
  name: 'step-advance',
  operands: [
    { name: 'control', dtype: 'f32', access: 'read_write' },
    { name: 'corrections', dtype: 'f32', access: 'read' },
  ],
  params: [{ name: 'entries', type: 'u32' }],
  constants: [],
  threads: () => 1,
  cost: () => ({ flops: 1, bytes: 64 }),
  run(views, { entries }) {
    const [control, corrections] = views as [Float32Array, Float32Array];
    const found = !Number.isFinite(control[CONTROL.loss]);
    control[CONTROL.foundInf] = found ? 1 : 0;
    if (found) control[CONTROL.halted] = 1;
    if (control[CONTROL.halted] !== 0) return;
    control[CONTROL.clip] = 1;
    advance(control, corrections, entries);
  },
  wgsl: `${isFiniteWgsl}${advanceWgsl}
fn kernel(i: u32) {
  let found = !isFinite(control[${CONTROL.loss}]);
  control[${CONTROL.foundInf}] = select(0.0, 1.0, found);
  if (found) { control[${CONTROL.halted}] = 1.0; }
  if (control[${CONTROL.halted}] != 0.0) { return; }
  control[${CONTROL.clip}] = 1.0;
  advance();
}
`,
};
