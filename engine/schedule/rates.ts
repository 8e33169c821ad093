import { z } from 'zod';
import type { Kernel, Params } from '../ops/kernel.ts';

/** What is measured of an adapter so that the time of a step can be told before it runs. */

/**
 * Kernels that come as near to the device's limits as each other: products of many rows, in float32, with halves, and on
 * tensor cores, and of few rows; attention, forward, backward and on tensor cores; what adds along rows or columns; what treats
 * each element by itself.
 */
export const KERNEL_CLASSES = [
  'matmul',
  'matmulHalf',
  'tensorCores',
  'fewRows',
  'attention',
  'attentionGrad',
  'attentionCores',
  'rows',
  'elements',
] as const;
export type KernelClass = (typeof KERNEL_CLASSES)[number];

const rate = z.number().positive();
/** A dispatch takes `seconds`, and the longer of its arithmetic and its memory traffic at these rates. */
const KernelRate = z.strictObject({ seconds: rate, flopsPerSecond: rate, bytesPerSecond: rate });
export type KernelRate = z.infer<typeof KernelRate>;

/** What copies between host and device run at in each of so many processes that all copy at once, each in both directions. */
const CopyRates = z.strictObject({
  processes: z.number().int().positive(),
  /** Into mapped upload buffers and out of mapped download ones: by the same threads, so a copy waits for those before it. */
  uploadBytesPerSecond: rate,
  hostCopyBytesPerSecond: rate,
  /** By the device, one copy after the other: to a download buffer, and from an upload buffer to where its bytes belong. */
  downloadBytesPerSecond: rate,
  placeBytesPerSecond: rate,
  /** What the process's one thread of JavaScript has to do for a copy, however few its bytes. */
  pieceSeconds: rate,
  /** From the end of the device's part of a copy until that thread knows of it. */
  roundTripSeconds: rate,
});
export type CopyRates = z.infer<typeof CopyRates>;

export const AdapterRates = z.strictObject({
  /** On the device, one dispatch after the other. */
  kernels: z.strictObject(
    Object.fromEntries(KERNEL_CLASSES.map((name) => [name, KernelRate])) as Record<KernelClass, typeof KernelRate>,
  ),
  /** Between a dispatch and one of another kernel. */
  switchSeconds: rate,
  /** Between the last dispatch of a submit and the first of the next. */
  submitGapSeconds: rate,
  /** The host's time to encode a dispatch, and to submit, beside the device. */
  dispatchSeconds: rate,
  submitSeconds: rate,
  /** By the number of processes, in ascending order, from one on. */
  copies: z.array(CopyRates).refine((list) => list[0]?.processes === 1, 'copies of one process come first'),
});
export type AdapterRates = z.infer<typeof AdapterRates>;

/**
 * The rates of each of so many processes that copy at once. Between two numbers that were measured, and beyond them, the
 * machine's total is shared out; what a copy costs beside its bytes is that of the nearest number below.
 */
export function copyRatesOf(copies: readonly CopyRates[], processes: number): CopyRates {
  const below = copies.findLast((each) => each.processes <= processes) ?? copies[0];
  const above = copies.find((each) => each.processes > processes);
  const shared = (rateOf: (each: CopyRates) => number) => {
    const total = (each: CopyRates) => rateOf(each) * each.processes;
    if (!above) return total(below) / processes;
    const way = (processes - below.processes) / (above.processes - below.processes);
    return (total(below) + way * (total(above) - total(below))) / processes;
  };
  return {
    ...below,
    processes,
    uploadBytesPerSecond: shared((each) => each.uploadBytesPerSecond),
    hostCopyBytesPerSecond: shared((each) => each.hostCopyBytesPerSecond),
    downloadBytesPerSecond: shared((each) => each.downloadBytesPerSecond),
    placeBytesPerSecond: shared((each) => each.placeBytesPerSecond),
  };
}

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
  const onCores = name.includes('tensor cores');
  if (name.startsWith('matmul')) {
    const { M, K } = params;
    if (onCores) return 'tensorCores';
    if (M <= FEW_ROWS || K <= FEW_ROWS) return 'fewRows';
    return halves ? 'matmulHalf' : 'matmul';
  }
  if (name.startsWith('attention') && onCores) return 'attentionCores';
  if (name.startsWith('attention-grad')) return 'attentionGrad';
  if (name.startsWith('attention')) return 'attention';
  return ROWS.some((start) => name.startsWith(start)) ? 'rows' : 'elements';
}
