import { CONTROL_ELEMENTS } from '../control.ts';
import { setStep } from '../dropout/dropout.cases.ts';
import type { KernelCase } from '../kernel-case.ts';
import { matmulCase } from './matmul.cases.ts';
import { matmulNN, matmulNTBias } from './matmul.ts';
import { matmulNNGated, matmulNTReluDrop } from './matmul-hidden.ts';

/** Products beside a hidden layer: unaligned and aligned. Wide ones differ from other products only in what they store. */
export const cases: readonly KernelCase[] = [
  { name: 'hidden, primes, strided', M: 13, N: 29, K: 31, padding: 3 },
  { name: 'hidden, narrow', M: 35, N: 68, K: 260, padding: 4 },
].flatMap((shape): KernelCase[] => {
  const { M, ldc, cOffset, accumulate: _, ...params } = matmulCase(matmulNN, shape).params;
  const elements = cOffset + M * ldc;
  const into = matmulCase(matmulNTBias, shape);
  return [
    {
      ...matmulCase(matmulNN, shape),
      kernel: matmulNNGated,
      params: { M, ldc, cOffset, ...params, scale: 1.25 },
      operandElements: [...matmulCase(matmulNN, shape).operandElements, elements],
    },
    {
      ...into,
      kernel: matmulNTReluDrop,
      params: { ...into.params, dropout: 0.2, maskKey0: 42, maskKey1: 31 },
      operandElements: [...into.operandElements, CONTROL_ELEMENTS],
      fill: (index, view) => {
        if (index === 4) setStep(view, 7);
      },
    },
  ];
});
