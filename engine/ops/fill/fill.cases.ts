import type { KernelCase } from '../kernel-case.ts';
import { fill } from './fill.ts';

const fillCase = (name: string, n: number, offset: number, total: number): KernelCase => ({
  kernel: fill,
  name: `${name}: ${n}`,
  params: { n, offset, value: 1.5 },
  operandElements: [total],
  tolerance: 0,
});

export const cases: KernelCase[] = [
  fillCase('one element', 1, 0, 1),
  fillCase('nothing', 0, 3, 7),
  fillCase('inside a tensor', 65, 5, 131),
  // 65 536 workgroups and one: the grid is folded.
  fillCase('over one dimension of workgroups', 65_536 * 256 + 1, 0, 65_536 * 256 + 3),
];
