import { CONTROL } from '../control.ts';

/**
 * How a gradient is clipped as the optimizer reads it: times the control tensor's coefficient (clipping by norm), then to
 * ±clipValue if that is above 0 (clipping by value). Only one of both does anything.
 */
export function clipping(control: Float32Array, clipValue: number): (gradient: number) => number {
  const coefficient = control[CONTROL.clip];
  const most = Math.fround(clipValue);
  if (!(most > 0)) return (gradient) => gradient * coefficient;
  return (gradient) => Math.min(most, Math.max(-most, gradient * coefficient));
}

/** WGSL: `clipped(gradient)`, the same, for kernels with an operand `control` and a parameter `clipValue`. */
export const clippingWgsl = clippingOf('f32');
/** The same for four elements at once. */
export const clippingFourWgsl = clippingOf('vec4f');

function clippingOf(type: string): string {
  return `
fn clipped(gradient: ${type}) -> ${type} {
  let scaled = gradient * control[${CONTROL.clip}];
  if (p.clipValue > 0.0) { return clamp(scaled, ${type}(-p.clipValue), ${type}(p.clipValue)); }
  return scaled;
}
`;
}
