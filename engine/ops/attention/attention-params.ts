import { dropoutParams } from '../dropout/dropout-mask.ts';
import type { ParamSpec } from '../kernel.ts';

/**
 * Parameters of attention and its gradients: B batches of T rows, H heads of HD columns, rows of qkv `stride` apart. `groupSize`
 * heads of queries share a head of keys and values (grouped-query attention; 1: each its own). It is compiled in, so that a
 * group of one costs nothing.
 */
export const attentionParams: readonly ParamSpec[] = [
  { name: 'B', type: 'u32' },
  { name: 'T', type: 'u32' },
  { name: 'H', type: 'u32' },
  { name: 'HD', type: 'u32' },
  { name: 'groupSize', type: 'u32' },
  { name: 'stride', type: 'u32' },
  { name: 'qOffset', type: 'u32' },
  { name: 'kOffset', type: 'u32' },
  { name: 'vOffset', type: 'u32' },
  { name: 'causal', type: 'u32' },
  ...dropoutParams,
];
export const attentionConstants = ['HD', 'groupSize'] as const;

/** Pairs of a query and a key that it may see, over all batches and heads. */
export function attentionPairs(B: number, T: number, H: number, causal: number): number {
  return B * H * (causal ? (T * (T + 1)) / 2 : T * T);
}
