import { CONTROL, CONTROL_ELEMENTS } from '../control.ts';
import type { View } from '../kernel.ts';
import type { KernelCase } from '../kernel-case.ts';
import { dropout } from './dropout.ts';
import { dropoutInPlace } from './dropout-in-place.ts';

/** Writes the step as u32 bits, as the host does. */
export function setStep(control: View, step: number): void {
  new Uint32Array(control.buffer, control.byteOffset, control.length)[CONTROL.step] = step;
}

function dropoutCase(name: string, n: number, p: number, step: number, maskKey0 = 42): KernelCase {
  return {
    kernel: dropout,
    name: `${name}: ${n}, p ${p}, step ${step}`,
    params: { n, dropout: p, maskKey0, maskKey1: 31 },
    operandElements: [n, CONTROL_ELEMENTS, n],
    fill: (index, view) => {
      if (index === 1) setStep(view, step);
    },
    tolerance: 1e-6,
  };
}

export const cases: KernelCase[] = [
  dropoutCase('one element', 1, 0.5, 0),
  dropoutCase('nothing', 0, 0.5, 0),
  dropoutCase('none dropped', 65, 0, 7),
  dropoutCase('a p that float32 rounds', 1009, 0.2, 12345),
  dropoutCase('nearly all dropped, large key', 1009, 0.99, 3, 0xffffffff),
  ...[1, 0, 65, 1009].map(
    (n): KernelCase => ({
      kernel: dropoutInPlace,
      name: `in place: ${n}`,
      params: { n, dropout: 0.2, maskKey0: 42, maskKey1: 31 },
      operandElements: [n, CONTROL_ELEMENTS],
      fill: (index, view, random) => {
        if (index === 1) setStep(view, 7);
        else for (let i = 0; i < view.length; i++) view[i] = random();
      },
      tolerance: 1e-6,
    }),
  ),
];
