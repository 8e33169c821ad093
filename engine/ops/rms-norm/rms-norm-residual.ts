import { rmsNormKernel } from './rms-norm-kernel.ts';

/** `rmsNorm` of sum = x + residual, which it keeps: the residual stream of a pre-norm transformer. */
export const rmsNormResidual = rmsNormKernel('rms-norm-residual', true);

/** The same with the sum rounded to a half first: where it is kept as one. */
export const rmsNormResidualHalf = rmsNormKernel('rms-norm-residual-half', true, true);
