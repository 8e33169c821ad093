import { cases as addCases } from './add/add.cases.ts';
import { cases as attentionCases } from './attention/attention.cases.ts';
import { cases as columnSumCases } from './column-sum/column-sum.cases.ts';
import { cases as copyCases } from './copy/copy.cases.ts';
import { cases as crossEntropyCases } from './cross-entropy/cross-entropy.cases.ts';
import { cases as dropoutCases } from './dropout/dropout.cases.ts';
import { cases as embeddingCases } from './embedding/embedding.cases.ts';
import { cases as embeddingGradCases } from './embedding/embedding-grad.cases.ts';
import { cases as fillCases } from './fill/fill.cases.ts';
import { cases as geluCases } from './gelu/gelu.cases.ts';
import { cases as halfCases } from './half/half.cases.ts';
import { cases as initValuesCases } from './init-values/init-values.cases.ts';
import type { KernelCase } from './kernel-case.ts';
import { cases as layerNormCases } from './layer-norm/layer-norm.cases.ts';
import { cases as matmulCases } from './matmul/matmul.cases.ts';
import { cases as matmulHiddenCases } from './matmul/matmul-hidden.cases.ts';
import { cases as matmulLinearGradsCases } from './matmul/matmul-linear-grads.cases.ts';
import { cases as matmulPartsCases } from './matmul/matmul-parts.cases.ts';
import { cases as normCases } from './norm/norm.cases.ts';
import { cases as optimizerCases } from './optimizer/optimizer.cases.ts';
import { cases as reluGradCases } from './relu-grad/relu-grad.cases.ts';
import { cases as rmsNormCases } from './rms-norm/rms-norm.cases.ts';
import { cases as rotaryCases } from './rotary/rotary.cases.ts';
import { cases as shardCases } from './shard/shard.cases.ts';
import { cases as siluMulCases } from './silu-mul/silu-mul.cases.ts';

/** The cases of every kernel, for the test that runs them on a device. */
export const allCases: readonly KernelCase[] = [
  // One folder's cases a line.
  ...attentionCases,
  ...columnSumCases,
  ...copyCases,
  ...dropoutCases,
  ...embeddingCases,
  ...embeddingGradCases,
  ...matmulLinearGradsCases,
  ...matmulCases,
  ...matmulHiddenCases,
  ...matmulPartsCases,
  ...addCases,
  ...crossEntropyCases,
  ...fillCases,
  ...geluCases,
  ...halfCases,
  ...initValuesCases,
  ...layerNormCases,
  ...normCases,
  ...optimizerCases,
  ...reluGradCases,
  ...rmsNormCases,
  ...rotaryCases,
  ...shardCases,
  ...siluMulCases,
];
