import type { Kernel } from '../kernel.ts';
import { layerNormKernel } from './layer-norm-kernel.ts';

/** `layerNorm` of sum = x + residual, which it keeps for the backward pass: the end of each sub-layer of a post-norm transformer. */
export const layerNormResidual: Kernel = layerNormKernel('layer-norm-residual', 'sum');

/** The same of sum = dropout(x) + residual. */
export const layerNormDropResidual: Kernel = layerNormKernel('layer-norm-drop-residual', 'dropped sum');

/** Both with the sum rounded to a half first: where it is kept as one. */
export const layerNormResidualHalf: Kernel = layerNormKernel('layer-norm-residual-half', 'sum', true);
export const layerNormDropResidualHalf: Kernel = layerNormKernel('layer-norm-drop-residual-half', 'dropped sum', true);
