import type { KernelCase } from '../kernel-case.ts';
import { embedding } from './embedding.ts';

function embeddingCase(name: string, R: number, V: number, D: number, T = 1): KernelCase {
  return {
    kernel: embedding,
    name: `${name}: ${R} of ${V}x${D}`,
    params: { R, D, scale: Math.sqrt(D), T },
    operandElements: [R, V * D, T * D, R * D],
    fill: (index, view, random) => {
      if (index === 0) for (let i = 0; i < R; i++) view[i] = Math.floor(random() * V);
    },
    tolerance: 1e-6,
  };
}

export const cases: KernelCase[] = [
  embeddingCase('one element', 1, 1, 1),
  embeddingCase('no positions', 0, 5, 4),
  embeddingCase('primes', 37, 97, 31),
  embeddingCase('the demo model', 35, 97, 32),
  embeddingCase('a row for each position', 39, 11, 7, 13),
];
