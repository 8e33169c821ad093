import type { Cost, Params } from '../engine/ops/kernel.ts';
import type { Layout } from './product-error.ts';

/** Layout, M, N and K. */
export type ProductShape = readonly [Layout, number, number, number];

/** What linear layers of the guide's model do at 35 tokens: forward, their input's gradient, their weight's. */
export const GUIDE_SHAPES: readonly ProductShape[] = [
  ['nt', 35, 1024, 1024],
  ['nt', 35, 2048, 1024],
  ['nt', 35, 3072, 1024],
  ['nt', 35, 4096, 1024],
  ['nt', 35, 1024, 4096],
  ['nt', 35, 33_278, 1024],
  ['nn', 35, 1024, 1024],
  ['nn', 35, 1024, 2048],
  ['nn', 35, 1024, 3072],
  ['nn', 35, 1024, 4096],
  ['nn', 35, 4096, 1024],
  ['nn', 35, 1024, 33_278],
  ['tn', 1024, 1024, 35],
  ['tn', 4096, 1024, 35],
];

/** [outputs, inputs] of its linear layers but the head, whose gradients are one dispatch. */
export const GUIDE_LAYERS: readonly (readonly [number, number])[] = [
  [1024, 1024],
  [2048, 1024],
  [3072, 1024],
  [4096, 1024],
  [1024, 4096],
];

export const LARGE_SHAPES: readonly ProductShape[] = [
  ['nt', 4096, 4096, 4096],
  ['nn', 4096, 4096, 4096],
  ['tn', 4096, 4096, 4096],
];

export const shapeName = ([layout, ...extents]: ProductShape): string => `${layout} ${extents.join('x')}`;

/** An extent for a machine without a GPU: what is not few is a sixteenth. */
export function shrunkExtent(n: number): number {
  return n <= 64 ? n : Math.ceil(n / 64) * 4 - (n === 33_278 ? 2 : 0);
}

export function shrunk([layout, M, N, K]: ProductShape): ProductShape {
  return [layout, shrunkExtent(M), shrunkExtent(N), shrunkExtent(K)];
}

/** Rows without gaps, but for whole vec4s of a and c. */
export function productParams([layout, M, N, K]: ProductShape): Params {
  const lda = Math.ceil((layout === 'tn' ? M : K) / 4) * 4;
  const ldb = layout === 'nt' ? K : N;
  return { M, N, K, aOffset: 0, lda, bOffset: 0, ldb, cOffset: 0, ldc: Math.ceil(N / 4) * 4, accumulate: 0 };
}

/**
 * The least that a product costs: its arithmetic, and its largest operand, the weight or the weight's gradient of few rows,
 * read or written once.
 */
export function leastCost([, M, N, K]: ProductShape): Cost {
  return { flops: 2 * M * N * K, bytes: 4 * Math.max(M * K, K * N, M * N) };
}

/** The least that both gradients of a layer cost: two products, the weight read and its gradient written. */
export function leastGradientsCost(rows: number, outputs: number, inputs: number): Cost {
  return { flops: 4 * rows * outputs * inputs, bytes: 8 * outputs * inputs };
}
