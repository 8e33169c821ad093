import type { KernelCase } from '../kernel-case.ts';
import { add } from './add.ts';

const addCase = (name: string, n: number): KernelCase => ({
  kernel: add,
  name: `${name}: ${n}`,
  params: { n },
  operandElements: [n + 3, n + 1],
  tolerance: 0,
});

export const cases: KernelCase[] = [
  addCase('one element', 1),
  addCase('nothing', 0),
  addCase('a workgroup and one', 65),
  addCase('a block and one', 257),
  addCase('a prime', 7919),
];
