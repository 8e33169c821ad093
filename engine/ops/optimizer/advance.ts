import { CONTROL } from '../control.ts';

/**
 * One more optimizer step is taken: t advances, and the bias corrections are read from row t of `corrections`
 * ([entries][2]: 1 − β1^t, √(1 − β2^t); row 0 is never read), from the last row beyond.
 */
export function advance(control: Float32Array, corrections: Float32Array, entries: number): void {
  const t = control[CONTROL.t] + 1;
  control[CONTROL.t] = t;
  const row = Math.min(t, entries - 1);
  control[CONTROL.biasCorrection1] = corrections[2 * row];
  control[CONTROL.sqrtBiasCorrection2] = corrections[2 * row + 1];
}

/** WGSL: the same as `advance()`, for kernels with operands `control` and `corrections` and a parameter `entries`. */
export const advanceWgsl = `
fn advance() {
  let t = control[${CONTROL.t}] + 1.0;
  control[${CONTROL.t}] = t;
  let row = min(u32(t), p.entries - 1u);
  control[${CONTROL.biasCorrection1}] = corrections[2u * row];
  control[${CONTROL.sqrtBiasCorrection2}] = corrections[2u * row + 1u];
}
`;
