import type { Cost } from '../engine/ops/kernel.ts';

/** What one H200 does at best with plain float32 kernels: products and sums, and bytes of a copy, both measured. */
const FLOPS_PER_SECOND = 28e12;
const MEMORY_BYTES_PER_SECOND = 3.7e12;

/** Milliseconds that a kernel needs at least on an H200: the longer of its arithmetic and its bytes. */
export function floorMs({ flops, bytes }: Cost): number {
  return 1000 * Math.max(flops / FLOPS_PER_SECOND, bytes / MEMORY_BYTES_PER_SECOND);
}
