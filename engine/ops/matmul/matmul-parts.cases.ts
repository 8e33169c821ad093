import type { Kernel } from '../kernel.ts';
import type { KernelCase } from '../kernel-case.ts';
import { matmulCase } from './matmul.cases.ts';
import { matmulNN } from './matmul.ts';
import { matmulAddParts, matmulAddPartsBias, matmulNNParts, PARTS } from './matmul-parts.ts';

interface Shape {
  readonly name: string;
  readonly M: number;
  readonly N: number;
  readonly K: number;
  readonly padding?: number;
  /** Elements after each row of a besides. */
  readonly extraA?: number;
}

function partsCase(shape: Shape): KernelCase {
  const whole = matmulCase(matmulNN, shape);
  const { M, N, K, extraA = 0 } = shape;
  const [a, b] = whole.operandElements;
  const { aOffset, lda, bOffset, ldb } = whole.params;
  const params = { M, N, K, aOffset, lda: lda + extraA, bOffset, ldb };
  return { ...whole, kernel: matmulNNParts, params, operandElements: [a + M * extraA, b, PARTS * M * N] };
}

const addCase = (kernel: Kernel, M: number, N: number, padding: number, accumulate: number): KernelCase => ({
  kernel,
  name: `${M}x${N}, ${padding} between rows`,
  params: { M, N, cOffset: padding, ldc: N + padding, accumulate, biasOffset: padding, relu: accumulate },
  operandElements: [
    PARTS * M * N,
    padding + M * (N + padding),
    ...(kernel === matmulAddPartsBias ? [padding + N] : []),
  ],
  tolerance: 1e-6,
});

export const cases: readonly KernelCase[] = [
  partsCase({ name: 'one element', M: 1, N: 1, K: 1 }),
  partsCase({ name: 'primes, strided', M: 13, N: 29, K: 31, padding: 3 }),
  partsCase({ name: 'parts of no whole stages', M: 37, N: 36, K: 1028, padding: 4 }),
  partsCase({ name: 'a sum of no whole vec4s', M: 5, N: 32, K: 413 }),
  partsCase({ name: 'large, rows of a longer than its sums', M: 132, N: 140, K: 326, padding: 4, extraA: 2 }),
  partsCase({ name: 'large, parts that are empty', M: 128, N: 132, K: 34, padding: 4, extraA: 2 }),
  ...[matmulAddParts, matmulAddPartsBias].flatMap((kernel) => [
    addCase(kernel, 1, 1, 0, 0),
    addCase(kernel, 37, 67, 3, 1),
  ]),
];
