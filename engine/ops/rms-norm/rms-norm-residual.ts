import { rmsNormKernel } from './rms-norm-kernel.ts';

/** `rmsNorm` of sum = x + residual, which it keeps: the residual stream of a pre-norm transformer. */
export const rmsNormResidual = rmsNormKernel('rms-norm-residual', true);
