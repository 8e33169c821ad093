import { CONTROL_ELEMENTS } from '../control.ts';
import { setStep } from '../dropout/dropout.cases.ts';
import type { KernelCase } from '../kernel-case.ts';
import { layerNorm } from './layer-norm.ts';
import { layerNormGrad, layerNormGradDrop } from './layer-norm-grad.ts';
import { layerNormGradWeight } from './layer-norm-grad-weight.ts';
import { layerNormGrads } from './layer-norm-grads.ts';
import {
  layerNormDropResidual,
  layerNormDropResidualHalf,
  layerNormResidual,
  layerNormResidualHalf,
} from './layer-norm-residual.ts';

const EPS = 1e-5;

const shapes: readonly (readonly [name: string, R: number, D: number, accumulate: number])[] = [
  ['one row of two', 1, 2, 0],
  ['no rows', 0, 7, 0],
  ['primes, added', 37, 67, 1],
  ['a workgroup and one', 65, 64, 0],
  ['wide, added', 3, 521, 1],
  ['more quads than threads', 2, 1100, 0],
  ['many rows', 301, 68, 1],
  ['many rows in whole quads, added', 1101, 72, 1],
];

const drop = { dropout: 0.2, maskKey0: 42, maskKey1: 31 };

/** Uniform numbers, with means and values of 1/σ as rows of such numbers have, so that the gradients do not depend on another kernel's run. */
function fillStats(statsIndex: number): KernelCase['fill'] {
  return (operand, view, random) => {
    for (let i = 0; i < view.length; i++) {
      view[i] = operand !== statsIndex ? random() * 2 - 1 : i % 2 === 0 ? random() - 0.5 : 1 + random();
    }
  };
}

export const cases: KernelCase[] = shapes.flatMap(([name, R, D, accumulate]): KernelCase[] => {
  const common = { name: `${name}: ${R}x${D}`, tolerance: 2e-5 };
  const x = R * D;
  return [
    { ...common, kernel: layerNorm, params: { R, D, eps: EPS }, operandElements: [x, D, D, x, 2 * R] },
    ...[layerNormResidual, layerNormResidualHalf].map(
      (kernel): KernelCase => ({
        ...common,
        kernel,
        params: { R, D, eps: EPS },
        operandElements: [x, x, D, D, x, x, 2 * R],
      }),
    ),
    {
      ...common,
      kernel: layerNormGrad,
      params: { R, D, accumulate },
      operandElements: [x, x, 2 * R, D, x],
      fill: fillStats(2),
    },
    ...[layerNormDropResidual, layerNormDropResidualHalf].map(
      (kernel): KernelCase => ({
        ...common,
        kernel,
        // A device may fuse the product with the sum, which then is rounded to another half.
        tolerance: kernel === layerNormDropResidualHalf ? 2e-3 : common.tolerance,
        params: { R, D, eps: EPS, ...drop },
        operandElements: [x, x, D, D, CONTROL_ELEMENTS, x, x, 2 * R],
        fill: (operand, view) => {
          if (operand === 4) setStep(view, 7);
        },
      }),
    ),
    {
      ...common,
      kernel: layerNormGradDrop,
      params: { R, D, accumulate, ...drop },
      operandElements: [x, x, 2 * R, D, x, CONTROL_ELEMENTS, x],
      fill: (operand, view, random) => {
        if (operand === 5) setStep(view, 7);
        else fillStats(2)?.(operand, view, random);
      },
    },
    {
      ...common,
      kernel: layerNormGrads,
      params: { R, D, accumulate, weightAccumulate: 1 - accumulate },
      operandElements: [x, x, 2 * R, D, x, D, D],
      fill: fillStats(2),
    },
    {
      ...common,
      kernel: layerNormGradWeight,
      params: { R, D, accumulate },
      operandElements: [x, x, 2 * R, D, D],
      fill: fillStats(2),
    },
  ];
});
