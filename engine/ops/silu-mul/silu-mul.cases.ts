import type { Kernel } from '../kernel.ts';
import type { KernelCase } from '../kernel-case.ts';
import { siluMul } from './silu-mul.ts';
import { siluMulGrad } from './silu-mul-grad.ts';

/** Gates (and ups) from −`reach` to `reach`. */
function siluMulCase(kernel: Kernel, name: string, R: number, I: number, reach: number): KernelCase {
  const size: Readonly<Record<string, number>> = { gu: 2 * R * I, out: R * I, dout: R * I };
  return {
    kernel,
    name: `${name}: ${R}x${I}`,
    params: { R, I },
    operandElements: kernel.operands.map((operand) => size[operand.name]),
    fill: (operand, view, random) => {
      if (kernel.operands[operand].name === 'gu')
        for (let i = 0; i < view.length; i++) view[i] = (random() * 2 - 1) * reach;
    },
    tolerance: 2e-6,
  };
}

export const cases: KernelCase[] = [siluMul, siluMulGrad].flatMap((kernel) => [
  siluMulCase(kernel, 'one element', 1, 1, 1),
  siluMulCase(kernel, 'no rows', 0, 7, 1),
  siluMulCase(kernel, 'primes', 13, 37, 4),
  siluMulCase(kernel, 'a block and one, far out', 1, 257, 200),
]);
