import type { KernelCase } from '../kernel-case.ts';
import { copy } from './copy.ts';

export const cases: KernelCase[] = [1, 0, 65, 1031].map((n) => ({
  kernel: copy,
  name: `${n}`,
  params: { n },
  operandElements: [n + 1, n + 2],
  tolerance: 0,
}));
