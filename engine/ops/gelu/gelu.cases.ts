import type { Kernel } from '../kernel.ts';
import type { KernelCase } from '../kernel-case.ts';
import { gelu } from './gelu.ts';
import { geluGrad } from './gelu-grad.ts';

/** x from −`reach` to `reach`. */
const geluCase = (kernel: Kernel, name: string, n: number, reach: number): KernelCase => ({
  kernel,
  name: `${name}: ${n}`,
  params: { n },
  operandElements: [n, n],
  fill: (operand, view, random) => {
    for (let i = 0; i < view.length; i++) view[i] = (random() * 2 - 1) * (operand === 0 ? reach : 1);
  },
  tolerance: 2e-6,
});

export const cases: KernelCase[] = [gelu, geluGrad].flatMap((kernel) => [
  geluCase(kernel, 'one element', 1, 1),
  geluCase(kernel, 'nothing', 0, 1),
  geluCase(kernel, 'a workgroup and one', 65, 3),
  geluCase(kernel, 'a prime, far out', 1031, 1000),
  {
    ...geluCase(kernel, 'not a number', 3, 1),
    fill: (operand, view) => {
      if (operand === 0) view[1] = Number.NaN;
    },
  },
]);
