import { z } from 'zod';
import type { Kernel, Params } from '../ops/kernel.ts';

/** What is measured of an adapter so that the time of a step can be told before it runs. */

/**
 * Kernels that come as near to the device's limits as each other: products of many rows, in float32, with halves, and on
 * tensor cores, and of few rows; attention, forward and backward; what adds along rows or columns; what treats each element
 * by itself.
 */
export const KERNEL_CLASSES = [
  'matmul',
  'matmulHalf',
  'tensorCores',
  'fewRows',
  'attention',
  'attentionGrad',
  'rows',
  'elements',
] as const;
export type KernelClass = (typeof KERNEL_CLASSES)[number];

const rate = z.number().positive();
/** A dispatch takes `seconds`, and the longer of its arithmetic and its memory traffic at these rates. */
const KernelRate = z.strictObject({ seconds: rate, flopsPerSecond: rate, bytesPerSecond: rate });
export type KernelRate = z.infer<typeof KernelRate>;

export const AdapterRates = z.strictObject({
  /** On the device, one dispatch after the other. */
  kernels: z.strictObject(
    Object.fromEntries(KERNEL_CLASSES.map((name) => [name, KernelRate])) as Record<KernelClass, typeof KernelRate>,
  ),
  /** Between a dispatch and one of another kernel. */
  switchSeconds: rate,
  /** The host's time to encode and submit a dispatch, beside the device. */
  dispatchSeconds: rate,
  /** From a submit of nothing much until the host has read what it made. */
  roundTripSeconds: rate,
  /** Into a mapped upload buffer; from the device to a download buffer; out of a mapped one. */
  uploadBytesPerSecond: rate,
  downloadBytesPerSecond: rate,
  hostCopyBytesPerSecond: rate,
});
export type AdapterRates = z.infer<typeof AdapterRates>;

/** Rows up to which a product is bound by reading its weight. */
const FEW_ROWS = 64;

/** Kernels that add along rows or columns, by how their names begin. */
const ROWS = [
  'layer-norm',
  'rms-norm',
  'cross-entropy',
  'column-sum',
  'row-square-sums',
  'embedding-grad',
  'loss-mean',
];

export function kernelClass({ name, halves }: Pick<Kernel, 'name' | 'halves'>, params: Params): KernelClass {
  if (name.startsWith('matmul')) {
    const { M, K } = params;
    if (name.endsWith('tensor cores')) return 'tensorCores';
    if (M <= FEW_ROWS || K <= FEW_ROWS) return 'fewRows';
    return halves ? 'matmulHalf' : 'matmul';
  }
  if (name.startsWith('attention-grad')) return 'attentionGrad';
  if (name.startsWith('attention')) return 'attention';
  return ROWS.some((start) => name.startsWith(start)) ? 'rows' : 'elements';
}
