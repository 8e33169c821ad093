import { CONTROL_ELEMENTS } from '../control.ts';
import type { KernelCase } from '../kernel-case.ts';
import { crossEntropy } from './cross-entropy.ts';
import { crossEntropyGrad } from './cross-entropy-grad.ts';
import { crossEntropyGradScaled } from './cross-entropy-grad-scaled.ts';
import { crossEntropyChunks, crossEntropyPartial } from './cross-entropy-partial.ts';
import { lossMean } from './loss-mean.ts';

const NOT_FINITE = 'a row that is not finite';

const LATER = 'later rows';

const shapes: readonly (readonly [name: string, R: number, V: number, ld: number])[] = [
  ['one logit', 1, 1, 1],
  ['no rows', 0, 5, 8],
  ['the demo', 36, 97, 100],
  ['a chunk and one', 65, 257, 260],
  ['many chunks', 3, 5003, 5004],
  [NOT_FINITE, 3, 2501, 2504],
  [LATER, 3, 97, 100],
];

/** As fillLogits, with a logit, a partial sum and a log-sum of the second row that are not finite. */
function fillNotFinite(V: number, ld: number, chunks: number): NonNullable<KernelCase['fill']> {
  return (operand, view, random) => {
    fillLogits(V)(operand, view, random);
    if (operand === 0) view.set([Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY], ld + V - 3);
    // lse[1] of the gradient, and the sum of the second row's first chunk of the loss.
    else if (view instanceof Float32Array) view[view.length === 2 * chunks * 3 ? 2 * chunks + 1 : 1] = Number.NaN;
  };
}

/** Logits from −20 to 20 and targets below V; what is a partial (operand 2 of the second half) gets a sum of at least 1. */
function fillLogits(V: number): NonNullable<KernelCase['fill']> {
  return (operand, view, random) => {
    for (let i = 0; i < view.length; i++) {
      if (view instanceof Uint32Array) view[i] = Math.floor(random() * V);
      else if (operand === 0) view[i] = random() * 40 - 20;
      else view[i] = 1 + random() * 20;
    }
  };
}

const lossMeanCase = (name: string, R: number, accumulate: number): KernelCase => ({
  kernel: lossMean,
  name: `${name}: ${R}`,
  params: { R, scale: R === 0 ? 1 : 1 / R, accumulate },
  operandElements: [R, CONTROL_ELEMENTS],
  tolerance: 1e-6,
});

export const cases: KernelCase[] = [
  ...shapes.flatMap(([name, R, V, ld]): KernelCase[] => {
    const chunks = crossEntropyChunks(V);
    const fill = name === NOT_FINITE ? fillNotFinite(V, ld, chunks) : fillLogits(V);
    const common = { name: `${name}: ${R}x${V} of ${ld}`, tolerance: 1e-5, fill };
    const params = { R, V, ld, chunks };
    const partial = 2 * R * chunks;
    const firstRow = name === LATER ? 5 : 0;
    const rows = firstRow + R;
    return [
      { ...common, kernel: crossEntropyPartial, params, operandElements: [R * ld, partial] },
      {
        ...common,
        kernel: crossEntropy,
        params: { ...params, firstRow },
        operandElements: [R * ld, rows, partial, rows, rows],
      },
      {
        ...common,
        kernel: crossEntropyGrad,
        params: { R, V, ld, firstRow, scale: 0.25 },
        operandElements: [R * ld, rows, rows],
      },
    ];
  }),
  {
    kernel: crossEntropyGradScaled,
    name: 'the demo',
    params: { R: 36, V: 97, ld: 100, firstRow: 0, scale: 0.25 },
    operandElements: [3600, 36, 36, CONTROL_ELEMENTS],
    fill: (operand, view, random) => (operand === 3 ? view.fill(1024) : fillLogits(97)(operand, view, random)),
    tolerance: 1e-3,
  },
  lossMeanCase('one row', 1, 0),
  lossMeanCase('no rows', 0, 1),
  lossMeanCase('lanes and some, added', 67, 1),
  lossMeanCase('a prime', 1031, 0),
];
