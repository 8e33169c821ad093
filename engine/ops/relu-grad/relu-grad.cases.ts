import type { KernelCase } from '../kernel-case.ts';
import { reluGrad } from './relu-grad.ts';

const reluGradCase = (name: string, n: number, scale = 1): KernelCase => ({
  kernel: reluGrad,
  name: `${name}: ${n}`,
  params: { n, scale },
  operandElements: [n, n],
  fill(_, view, random) {
    for (let i = 0; i < view.length; i++) view[i] = Math.max(-0.5, random() * 2 - 1) + (i % 5 === 0 ? 0.5 : 0);
  },
  tolerance: 0,
});

export const cases: KernelCase[] = [
  reluGradCase('one element', 1),
  reluGradCase('nothing', 0),
  reluGradCase('a workgroup and one', 65),
  reluGradCase('a prime', 1031),
  reluGradCase('dropped after it', 1031, 1.25),
  reluGradCase('whole quads, dropped after it', 1028, 1.25),
];
