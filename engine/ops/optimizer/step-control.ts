import { CONTROL } from '../control.ts';
import { isFiniteWgsl } from '../finite.ts';
import type { Kernel } from '../kernel.ts';
import { advance, advanceWgsl } from './advance.ts';

/**
 * Decides an optimizer step on the device. gradNorm = √sumSquares[0]; foundInf = 1 if that is not finite, and halted stays 1
 * from then on if `stopOnNonFinite` is 1. (A rank's loss has no say: the norm is the same on every rank, the loss is not, and
 * a loss that is not finite has gradients that are not.) Otherwise, unless halted, t advances and the bias corrections are
 * read from row t of `corrections` ([entries][2]: 1 − β1^t, √(1 − β2^t); row 0 is never read), from the last row beyond. Runs
 * before the optimizer's kernels of the step.
 */
export const stepControl: Kernel = {
  name: 'step-control',
  operands: [
    { name: 'control', dtype: 'f32', access: 'read_write' },
    { name: 'sumSquares', dtype: 'f32', access: 'read' },
    { name: 'corrections', dtype: 'f32', access: 'read' },
  ],
  params: [
    { name: 'entries', type: 'u32' },
    { name: 'stopOnNonFinite', type: 'u32' },
    { name: 'maxNorm', type: 'f32' },
  ],
  constants: [],
  threads: () => 1,
  cost: () => ({ flops: 1, bytes: 64 }),
  run(views, { entries, stopOnNonFinite, maxNorm }) {
    const [control, sumSquares, corrections] = views as [Float32Array, Float32Array, Float32Array];
    const squares = sumSquares[0];
    control[CONTROL.gradNorm] = Number.isFinite(squares) ? Math.sqrt(squares) : squares;
    const found = !Number.isFinite(squares);
    control[CONTROL.foundInf] = found ? 1 : 0;
    if (found && stopOnNonFinite === 1) control[CONTROL.halted] = 1;
    if (found || control[CONTROL.halted] !== 0) return;
    const most = Math.fround(maxNorm);
    control[CONTROL.clip] = most > 0 ? Math.min(1, most / (control[CONTROL.gradNorm] + 1e-6)) : 1;
    advance(control, corrections, entries);
  },
  wgsl: `${isFiniteWgsl}${advanceWgsl}
fn kernel(i: u32) {
  let squares = sumSquares[0];
  let normIsFinite = isFinite(squares);
  if (normIsFinite) { control[${CONTROL.gradNorm}] = sqrt(squares); } else { control[${CONTROL.gradNorm}] = squares; }
  let found = !normIsFinite;
  control[${CONTROL.foundInf}] = select(0.0, 1.0, found);
  if (found && p.stopOnNonFinite == 1u) { control[${CONTROL.halted}] = 1.0; }
  if (found || control[${CONTROL.halted}] != 0.0) { return; }
  control[${CONTROL.clip}] = 1.0;
  if (p.maxNorm > 0.0) {
    control[${CONTROL.clip}] = min(1.0, p.maxNorm / (control[${CONTROL.gradNorm}] + 1e-6));
  }
  advance();
}
`,
};
