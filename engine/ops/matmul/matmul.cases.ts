import type { Kernel } from '../kernel.ts';
import type { KernelCase } from '../kernel-case.ts';
import { matmulNN, matmulNNBias, matmulNT, matmulNTBias, matmulTN, matmulTNSums } from './matmul.ts';

interface Shape {
  readonly name: string;
  readonly M: number;
  readonly N: number;
  readonly K: number;
  readonly accumulate?: number;
  readonly relu?: number;
  /** Elements before each operand and after each of its rows. */
  readonly padding?: number;
}

export function matmulCase(kernel: Kernel, shape: Shape): KernelCase {
  const { M, N, K, accumulate = 0, relu = 0, padding = 0 } = shape;
  const tn = kernel === matmulTN || kernel === matmulTNSums;
  const sums = kernel === matmulTNSums;
  const [aRows, lda] = tn ? [K, M + padding] : [M, K + padding];
  const [bRows, ldb] = kernel === matmulNT || kernel === matmulNTBias ? [N, K + padding] : [K, N + padding];
  const ldc = N + padding;
  const strides = { aOffset: padding, lda, bOffset: padding, ldb, cOffset: padding, ldc };
  const bias = kernel === matmulNTBias || kernel === matmulNNBias;
  return {
    kernel,
    name: `${shape.name}: ${M}x${N}x${K}`,
    params: {
      M,
      N,
      K,
      ...strides,
      accumulate,
      ...(bias ? { biasOffset: padding, relu } : {}),
      ...(sums ? { sumsOffset: padding, sumsAccumulate: 1 - accumulate } : {}),
    },
    operandElements: [
      padding + aRows * lda,
      padding + bRows * ldb,
      padding + M * ldc,
      ...(bias ? [padding + N] : []),
      ...(sums ? [padding + M] : []),
    ],
    // Products below 1 added K times in float32: far above the rounding of the oracle, far below a wrong element.
    tolerance: 2e-6 * Math.max(4, Math.sqrt(K)),
  };
}

const shapes: readonly Shape[] = [
  { name: 'one element', M: 1, N: 1, K: 1 },
  { name: 'no rows', M: 0, N: 5, K: 3 },
  { name: 'nothing to add', M: 3, N: 5, K: 0, accumulate: 1 },
  { name: 'primes, strided, added', M: 13, N: 29, K: 31, accumulate: 1, padding: 3 },
  { name: 'one row', M: 1, N: 67, K: 129 },
  { name: 'more than a tile each way', M: 71, N: 137, K: 65, padding: 1 },
  { name: 'multiples of four, strided by four', M: 66, N: 132, K: 68, padding: 4 },
  { name: 'more than the few-rows path takes', M: 67, N: 71, K: 37, accumulate: 1, padding: 3 },
  { name: 'the demo model', M: 35, N: 96, K: 32 },
  { name: 'the demo model, long sum', M: 35, N: 32, K: 997 },
];

/** Shapes of the variants that read 16 bytes at a time. */
const fewRowsShapes: readonly Shape[] = [
  { name: 'few rows, a tile and a half of k', M: 13, N: 52, K: 196, padding: 4 },
  { name: 'few rows, wide, added', M: 35, N: 2564, K: 92, accumulate: 1, padding: 4 },
  { name: 'few rows, twice as many', M: 63, N: 68, K: 260 },
];
/** A weight's gradient from rows that are longer than it has columns. */
function paddedCase(): KernelCase {
  const [M, N, K, lda] = [259, 132, 68, 260];
  const whole = matmulCase(matmulTN, { name: 'large, columns of no whole quads, added', M, N, K, accumulate: 1 });
  return { ...whole, params: { ...whole.params, lda }, operandElements: [K * lda, ...whole.operandElements.slice(1)] };
}

const largeShape: Shape = { name: 'large, strided, added', M: 132, N: 260, K: 68, accumulate: 1, padding: 4 };

export const cases: KernelCase[] = [
  ...[matmulNT, matmulNN, matmulTN, matmulNTBias, matmulNNBias].flatMap((kernel) =>
    shapes.map((shape) => matmulCase(kernel, shape)),
  ),
  // One kernel of each layout: those with and without a bias differ in what they store.
  ...[matmulNTBias, matmulNN].flatMap((kernel) => fewRowsShapes.map((shape) => matmulCase(kernel, shape))),
  matmulCase(matmulNTBias, { name: 'few rows, half as wide', M: 35, N: 1540, K: 140 }),
  matmulCase(matmulNTBias, { name: 'few rows, very wide', M: 3, N: 8196, K: 36 }),
  ...[matmulNTBias, matmulNN, matmulTN].map((kernel) => matmulCase(kernel, largeShape)),
  paddedCase(),
  matmulCase(matmulNN, { name: 'few tiles, many terms', M: 132, N: 132, K: 260 }),
  matmulCase(matmulNTBias, { name: 'large, rows of no whole quads, relu', M: 132, N: 131, K: 68, relu: 1 }),
  matmulCase(matmulTN, { name: 'few terms, strided, added', M: 76, N: 140, K: 35, accumulate: 1, padding: 4 }),
  matmulCase(matmulTNSums, { name: 'few terms, two blocks a workgroup', M: 8516, N: 4, K: 5 }),
  matmulCase(matmulTN, { name: 'few terms, more than are staged at once', M: 64, N: 128, K: 47 }),
  ...[shapes[0], shapes[3], shapes[5], { name: 'few terms', M: 68, N: 132, K: 35, padding: 4 }].map((shape) =>
    matmulCase(matmulTNSums, shape),
  ),
  matmulCase(matmulNTBias, { name: 'relu, added', M: 37, N: 41, K: 19, relu: 1, accumulate: 1, padding: 2 }),
  matmulCase(matmulNTBias, { name: 'relu, tiled', M: 37, N: 41, K: 29, relu: 1, accumulate: 1, padding: 2 }),
  matmulCase(matmulNTBias, { name: 'relu, tiled, square', M: 131, N: 66, K: 23, relu: 1 }),
  {
    ...matmulCase(matmulNTBias, { name: 'NaN under relu', M: 5, N: 7, K: 3, relu: 1 }),
    fill: (index, view) => {
      if (index === 0) view[4] = Number.NaN;
    },
  },
];
