import type { ParamSpec } from '../kernel.ts';

/** Parameters of attention and its gradients: B batches of T rows, H heads of HD columns, rows of qkv `stride` apart. */
export const attentionParams: readonly ParamSpec[] = [
  { name: 'B', type: 'u32' },
  { name: 'T', type: 'u32' },
  { name: 'H', type: 'u32' },
  { name: 'HD', type: 'u32' },
  { name: 'stride', type: 'u32' },
  { name: 'qOffset', type: 'u32' },
  { name: 'kOffset', type: 'u32' },
  { name: 'vOffset', type: 'u32' },
  { name: 'causal', type: 'u32' },
  { name: 'dropout', type: 'f32' },
  { name: 'seed', type: 'u32' },
  { name: 'site', type: 'u32' },
  { name: 'rank', type: 'u32' },
];
export const attentionConstants = ['HD'] as const;

/** Pairs of a query and a key that it may see, over all batches and heads. */
export function attentionPairs(B: number, T: number, H: number, causal: number): number {
  return B * H * (causal ? (T * (T + 1)) / 2 : T * T);
}
