import { CONTROL } from '../control.ts';

/** Whether this step updates nothing: its gradients are not finite, or the run is halted. */
export function skipsUpdate(control: Float32Array): boolean {
  return control[CONTROL.foundInf] !== 0 || control[CONTROL.halted] !== 0;
}

/** WGSL: the same as `skipsUpdate()`. */
export const skipsUpdateWgsl = `
fn skipsUpdate() -> bool { return control[${CONTROL.foundInf}] != 0.0 || control[${CONTROL.halted}] != 0.0; }
`;
