import type { KernelCase } from '../kernel-case.ts';
import { embeddingGrad } from './embedding-grad.ts';

/** `distinct` tokens below V at most, so that many repeat. */
function embeddingGradCase(name: string, R: number, V: number, D: number, distinct: number): KernelCase {
  return {
    kernel: embeddingGrad,
    name: `${name}: ${R} of ${V}x${D}`,
    params: { R, D, scale: Math.sqrt(D) },
    operandElements: [R, R * D, V * D],
    fill: (index, view, random) => {
      if (index === 0) for (let i = 0; i < R; i++) view[i] = V - 1 - Math.floor(random() * distinct);
    },
    tolerance: 1e-5,
  };
}

export const cases: KernelCase[] = [
  embeddingGradCase('one element', 1, 1, 1, 1),
  embeddingGradCase('no positions', 0, 5, 4, 1),
  embeddingGradCase('primes, repeated', 37, 97, 31, 11),
  embeddingGradCase('one token everywhere', 1009, 3, 5, 1),
  embeddingGradCase('in quads, few repeated', 131, 997, 68, 900),
  embeddingGradCase('in quads, more than are looked through at once', 4131, 997, 64, 997),
];
