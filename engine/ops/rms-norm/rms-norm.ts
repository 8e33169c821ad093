import { rmsNormKernel } from './rms-norm-kernel.ts';

/** The root-mean-square norm of the rows of x[R, D]. */
export const rmsNorm = rmsNormKernel('rms-norm', false);
