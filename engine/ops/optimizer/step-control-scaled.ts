import { CONTROL } from '../control.ts';
import { isFiniteWgsl } from '../finite.ts';
import type { Kernel } from '../kernel.ts';
import { advance, advanceWgsl } from './advance.ts';
import { LOSS_SCALE } from './loss-scale.ts';
import { stepControl } from './step-control.ts';

/**
 * `stepControl` for gradients of a scaled loss: the norm is reported without the scale, and the coefficient by which the
 * optimizer multiplies gradients takes it away. A step that is not finite is skipped and halves the scale; so many finite
 * ones in a row double it (torch.amp.GradScaler). It never halts: an overflow is how the scale is found.
 */
export const stepControlScaled: Kernel = {
  ...stepControl,
  name: 'step-control-scaled',
  tiled: undefined,
  params: stepControl.params.filter(({ name }) => name !== 'stopOnNonFinite'),
  run(views, { entries, maxNorm }) {
    const [control, sumSquares, corrections] = views as [Float32Array, Float32Array, Float32Array];
    const squares = sumSquares[0];
    const scale = control[CONTROL.lossScale];
    const found = !Number.isFinite(squares);
    control[CONTROL.gradNorm] = found ? squares : Math.fround(Math.sqrt(squares)) / scale;
    control[CONTROL.foundInf] = found ? 1 : 0;
    if (found) {
      control[CONTROL.lossScale] = Math.max(LOSS_SCALE.least, scale * LOSS_SCALE.backoff);
      control[CONTROL.goodSteps] = 0;
      return;
    }
    const most = Math.fround(maxNorm);
    const clip = most > 0 ? Math.fround(Math.min(1, most / (control[CONTROL.gradNorm] + 1e-6))) : 1;
    control[CONTROL.clip] = clip / scale;
    const good = control[CONTROL.goodSteps] + 1;
    control[CONTROL.goodSteps] = good === LOSS_SCALE.growthInterval ? 0 : good;
    if (good === LOSS_SCALE.growthInterval) control[CONTROL.lossScale] = scale * LOSS_SCALE.growth;
    advance(control, corrections, entries);
  },
  wgsl: `${isFiniteWgsl}${advanceWgsl}
fn kernel(i: u32) {
  let squares = sumSquares[0];
  let scale = control[${CONTROL.lossScale}];
  if (!isFinite(squares)) {
    control[${CONTROL.gradNorm}] = squares;
    control[${CONTROL.foundInf}] = 1.0;
    control[${CONTROL.lossScale}] = max(${LOSS_SCALE.least}, scale * ${LOSS_SCALE.backoff});
    control[${CONTROL.goodSteps}] = 0.0;
    return;
  }
  let norm = sqrt(squares) / scale;
  control[${CONTROL.gradNorm}] = norm;
  control[${CONTROL.foundInf}] = 0.0;
  var clip = 1.0;
  if (p.maxNorm > 0.0) { clip = min(1.0, p.maxNorm / (norm + 1e-6)); }
  control[${CONTROL.clip}] = clip / scale;
  var good = control[${CONTROL.goodSteps}] + 1.0;
  if (good == ${LOSS_SCALE.growthInterval}.0) {
    control[${CONTROL.lossScale}] = scale * ${LOSS_SCALE.growth}.0;
    good = 0.0;
  }
  control[${CONTROL.goodSteps}] = good;
  advance();
}
`,
};
