import type { Kernel } from '../kernel.ts';
import { layerNormKernel } from './layer-norm-kernel.ts';

/** `layerNorm` of sum = x + residual, which it keeps for the backward pass: the end of each sub-layer of a post-norm transformer. */
export const layerNormResidual: Kernel = layerNormKernel('layer-norm-residual', true);
