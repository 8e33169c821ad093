import { CONTROL } from '../control.ts';
import { isFiniteWgsl } from '../finite.ts';
import type { Kernel } from '../kernel.ts';

/** Ends a step that `stepAdvance` opened: gradNorm = √sumSquares[0], and the run halts if that is not finite. */
export const stepNorm: Kernel = {
  name: 'step-norm',
  operands: [
    { name: 'control', dtype: 'f32', access: 'read_write' },
    { name: 'sumSquares', dtype: 'f32', access: 'read' },
  ],
  params: [],
  constants: [],
  threads: () => 1,
  cost: () => ({ flops: 1, bytes: 64 }),
  run(views) {
    const [control, sumSquares] = views as [Float32Array, Float32Array];
    const squares = sumSquares[0];
    const found = !Number.isFinite(squares);
    control[CONTROL.gradNorm] = found ? squares : Math.sqrt(squares);
    if (!found) return;
    control[CONTROL.foundInf] = 1;
    control[CONTROL.halted] = 1;
  },
  wgsl: `${isFiniteWgsl}
fn kernel(i: u32) {
  let squares = sumSquares[0];
  if (isFinite(squares)) {
    control[${CONTROL.gradNorm}] = sqrt(squares);
    return;
  }
  control[${CONTROL.gradNorm}] = squares;
  control[${CONTROL.foundInf}] = 1.0;
  control[${CONTROL.halted}] = 1.0;
}
`,
};
