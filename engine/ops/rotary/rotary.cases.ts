import type { KernelCase } from '../kernel-case.ts';
import { rotary } from './rotary.ts';
import { rotaryTable } from './rotate.ts';

interface Shape {
  readonly name: string;
  readonly B: number;
  readonly T: number;
  readonly H: number;
  readonly HD: number;
  /** Columns of a row that do not turn. */
  readonly rest: number;
  readonly back: number;
}

function rotaryCase({ name, B, T, H, HD, rest, back }: Shape): KernelCase {
  const stride = H * HD + rest;
  return {
    kernel: rotary,
    name: `${name}: ${B}x${T}, ${H} heads of ${HD}`,
    params: { R: B * T, T, H, HD, stride, back },
    operandElements: [B * T * stride, T * HD],
    fill: (operand, view) => {
      if (operand === 1) view.set(rotaryTable(T, HD, 10_000));
    },
    tolerance: 1e-6,
  };
}

export const cases: KernelCase[] = [
  rotaryCase({ name: 'one pair', B: 1, T: 1, H: 1, HD: 2, rest: 0, back: 0 }),
  rotaryCase({ name: 'no rows', B: 0, T: 3, H: 2, HD: 4, rest: 0, back: 0 }),
  rotaryCase({ name: 'primes', B: 3, T: 13, H: 5, HD: 6, rest: 7, back: 0 }),
  rotaryCase({ name: 'primes, back', B: 3, T: 13, H: 5, HD: 6, rest: 7, back: 1 }),
  rotaryCase({ name: 'a long sequence', B: 1, T: 331, H: 1, HD: 8, rest: 8, back: 0 }),
];
