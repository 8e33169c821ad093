import type { KernelCase } from '../kernel-case.ts';
import { rmsNorm } from './rms-norm.ts';
import { rmsNormGrad } from './rms-norm-grad.ts';
import { rmsNormGradWeight } from './rms-norm-grad-weight.ts';
import { rmsNormResidual, rmsNormResidualHalf } from './rms-norm-residual.ts';

const EPS = 1e-6;

const shapes: readonly (readonly [name: string, R: number, D: number, accumulate: number])[] = [
  ['one element', 1, 1, 0],
  ['no rows', 0, 7, 0],
  ['primes, added', 37, 67, 1],
  ['a workgroup and one', 65, 64, 0],
  ['wide, added', 3, 521, 1],
];

/** Values of 1/√(mean square) as rows of uniform numbers have, so that the gradients do not depend on another kernel's run. */
const fillRstd: KernelCase['fill'] = (operand, view, random) => {
  if (operand === 2) for (let i = 0; i < view.length; i++) view[i] = 1 + random();
};

export const cases: KernelCase[] = shapes.flatMap(([name, R, D, accumulate]): KernelCase[] => {
  const common = { name: `${name}: ${R}x${D}`, tolerance: 2e-5 };
  const x = R * D;
  const grad = { ...common, params: { R, D, accumulate }, fill: fillRstd };
  return [
    { ...common, kernel: rmsNorm, params: { R, D, eps: EPS }, operandElements: [x, D, x, R] },
    ...[rmsNormResidual, rmsNormResidualHalf].map(
      (kernel): KernelCase => ({ ...common, kernel, params: { R, D, eps: EPS }, operandElements: [x, x, D, x, x, R] }),
    ),
    { ...grad, kernel: rmsNormGrad, operandElements: [x, x, R, D, x] },
    { ...grad, kernel: rmsNormGradWeight, operandElements: [x, x, R, D] },
  ];
});
