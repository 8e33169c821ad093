import type { KernelCase } from '../kernel-case.ts';
import { columnSum } from './column-sum.ts';

function columnSumCase(name: string, R: number, C: number, padding: number, accumulate: number): KernelCase {
  return {
    kernel: columnSum,
    name: `${name}: ${R}x${C}`,
    params: { R, C, xOffset: padding, ldx: C + padding, outOffset: padding, accumulate },
    operandElements: [padding + R * (C + padding), padding + C],
    tolerance: 2e-6 * Math.max(4, Math.sqrt(R)),
  };
}

export const cases: KernelCase[] = [
  columnSumCase('one element', 1, 1, 0, 0),
  columnSumCase('no rows', 0, 7, 0, 0),
  columnSumCase('no columns', 7, 0, 0, 0),
  columnSumCase('primes, strided, added', 37, 67, 3, 1),
  columnSumCase('a workgroup and one', 35, 65, 0, 0),
  columnSumCase('many rows', 521, 131, 0, 0),
];
