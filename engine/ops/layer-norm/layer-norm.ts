import type { Kernel } from '../kernel.ts';
import { layerNormKernel } from './layer-norm-kernel.ts';

/** y = (x − mean) / √(variance + eps) · weight + bias over the D columns of each of R rows; stats[R, 2] = mean, 1 / √(…). */
export const layerNorm: Kernel = layerNormKernel('layer-norm', 'x');
