import type { KernelCase } from '../kernel-case.ts';
import { matmulLinearGrads } from './matmul-linear-grads.ts';

interface Shape {
  readonly name: string;
  readonly M: number;
  readonly N: number;
  readonly K: number;
  /** Whether what is there is added to. */
  readonly added?: boolean;
  readonly scale?: number;
  /** Columns of dy before and behind those of the layer, and rows of the weight. */
  readonly padding?: number;
}

export function linearGradsCase({ name, M, N, K, added = false, scale, padding = 0 }: Shape): KernelCase {
  const accumulate = added ? 1 : 0;
  const rows = padding + N + padding;
  return {
    kernel: matmulLinearGrads,
    name: `${name}: ${M}x${N}x${K}`,
    params: {
      ...{ M, N, K, dyOffset: padding, ldy: rows, wOffset: padding * K, sumsOffset: padding },
      ...{ xAccumulate: accumulate, wAccumulate: accumulate, sumsAccumulate: accumulate },
      ...{ gated: scale === undefined ? 0 : 1, scale: scale ?? 1 },
    },
    operandElements: [M * rows, rows * K, M * K, M * K, rows * K, rows],
    tolerance: 2e-6 * Math.max(4, Math.sqrt(Math.max(N, M))),
  };
}

export const cases: readonly KernelCase[] = [
  linearGradsCase({ name: 'one element', M: 1, N: 1, K: 1 }),
  linearGradsCase({ name: 'primes, a part of a weight, added', M: 13, N: 29, K: 31, padding: 3, added: true }),
  linearGradsCase({ name: 'more rows than a workgroup has', M: 37, N: 32, K: 36 }),
  linearGradsCase({ name: 'narrow, added', M: 35, N: 196, K: 76, padding: 4, added: true }),
  linearGradsCase({ name: 'narrow, gated', M: 19, N: 260, K: 132, scale: 1.25 }),
  linearGradsCase({ name: 'wide, gated', M: 35, N: 140, K: 2564, scale: 2, padding: 8 }),
  linearGradsCase({ name: 'wide, many blocks', M: 5, N: 1096, K: 2560 }),
];
