import { add } from './add/add.ts';
import { attention } from './attention/attention.ts';
import { attentionGrad } from './attention/attention-grad.ts';
import { attentionGradKV } from './attention/attention-grad-kv.ts';
import { attentionGradQ } from './attention/attention-grad-q.ts';
import { columnSum } from './column-sum/column-sum.ts';
import { copy } from './copy/copy.ts';
import { crossEntropy } from './cross-entropy/cross-entropy.ts';
import { crossEntropyGrad } from './cross-entropy/cross-entropy-grad.ts';
import { crossEntropyGradScaled } from './cross-entropy/cross-entropy-grad-scaled.ts';
import { crossEntropyPartial } from './cross-entropy/cross-entropy-partial.ts';
import { lossMean } from './cross-entropy/loss-mean.ts';
import { dropout } from './dropout/dropout.ts';
import { dropoutInPlace } from './dropout/dropout-in-place.ts';
import { embedding } from './embedding/embedding.ts';
import { embeddingGrad } from './embedding/embedding-grad.ts';
import { fill } from './fill/fill.ts';
import { gelu } from './gelu/gelu.ts';
import { geluGrad } from './gelu/gelu-grad.ts';
import { packHalf } from './half/pack-half.ts';
import { roundHalf } from './half/round-half.ts';
import { unpackHalf } from './half/unpack-half.ts';
import { initNormal } from './init-values/init-normal.ts';
import { initUniform } from './init-values/init-uniform.ts';
import type { Kernel } from './kernel.ts';
import { layerNorm } from './layer-norm/layer-norm.ts';
import { layerNormGrad, layerNormGradDrop } from './layer-norm/layer-norm-grad.ts';
import { layerNormGradWeight } from './layer-norm/layer-norm-grad-weight.ts';
import { layerNormGrads } from './layer-norm/layer-norm-grads.ts';
import {
  layerNormDropResidual,
  layerNormDropResidualHalf,
  layerNormResidual,
  layerNormResidualHalf,
} from './layer-norm/layer-norm-residual.ts';
import { matmulNN, matmulNNBias, matmulNT, matmulNTBias, matmulTN, matmulTNSums } from './matmul/matmul.ts';
import { matmulNNGated, matmulNTReluDrop } from './matmul/matmul-hidden.ts';
import { matmulLinearGrads } from './matmul/matmul-linear-grads.ts';
import { matmulAddParts, matmulAddPartsBias, matmulNNParts } from './matmul/matmul-parts.ts';
import { rowSquareSums } from './norm/row-square-sums.ts';
import { treeSum } from './norm/tree-sum.ts';
import { adam, adamHalf } from './optimizer/adam.ts';
import { sgd, sgdHalf } from './optimizer/sgd.ts';
import { sgdPlain, sgdPlainHalf } from './optimizer/sgd-plain.ts';
import { stepAdvance } from './optimizer/step-advance.ts';
import { stepControl } from './optimizer/step-control.ts';
import { stepControlScaled } from './optimizer/step-control-scaled.ts';
import { stepNorm } from './optimizer/step-norm.ts';
import { reluGrad } from './relu-grad/relu-grad.ts';
import { rmsNorm } from './rms-norm/rms-norm.ts';
import { rmsNormGrad } from './rms-norm/rms-norm-grad.ts';
import { rmsNormGradWeight } from './rms-norm/rms-norm-grad-weight.ts';
import { rmsNormResidual, rmsNormResidualHalf } from './rms-norm/rms-norm-residual.ts';
import { rotary } from './rotary/rotary.ts';
import { reduceTree } from './shard/reduce-tree.ts';
import { shardPack } from './shard/shard-pack.ts';
import { shardPackHalf } from './shard/shard-pack-half.ts';
import { takeShard } from './shard/take-shard.ts';
import { unshard } from './shard/unshard.ts';
import { unshardHalf } from './shard/unshard-half.ts';
import { siluMul } from './silu-mul/silu-mul.ts';
import { siluMulGrad } from './silu-mul/silu-mul-grad.ts';

/** Every kernel, by name. */
export const kernels: ReadonlyMap<string, Kernel> = new Map(
  (
    [
      // One a line, by folder.
      attention,
      attentionGradQ,
      attentionGradKV,
      attentionGrad,
      columnSum,
      copy,
      dropout,
      dropoutInPlace,
      embedding,
      embeddingGrad,
      matmulNT,
      matmulNN,
      matmulTN,
      matmulTNSums,
      matmulNTBias,
      matmulNNBias,
      matmulNTReluDrop,
      matmulNNGated,
      matmulLinearGrads,
      matmulNNParts,
      matmulAddParts,
      matmulAddPartsBias,
      add,
      crossEntropy,
      crossEntropyGrad,
      crossEntropyGradScaled,
      crossEntropyPartial,
      lossMean,
      fill,
      gelu,
      geluGrad,
      packHalf,
      roundHalf,
      unpackHalf,
      initNormal,
      initUniform,
      layerNorm,
      layerNormGrad,
      layerNormGradDrop,
      layerNormGrads,
      layerNormGradWeight,
      layerNormResidual,
      layerNormDropResidual,
      layerNormResidualHalf,
      layerNormDropResidualHalf,
      rowSquareSums,
      treeSum,
      adam,
      adamHalf,
      sgd,
      sgdHalf,
      sgdPlain,
      sgdPlainHalf,
      stepAdvance,
      stepControl,
      stepControlScaled,
      stepNorm,
      reluGrad,
      rmsNorm,
      rmsNormGrad,
      rmsNormGradWeight,
      rmsNormResidual,
      rmsNormResidualHalf,
      rotary,
      siluMul,
      siluMulGrad,
      reduceTree,
      shardPack,
      shardPackHalf,
      takeShard,
      unshard,
      unshardHalf,
    ] as readonly Kernel[]
  ).map((kernel) => [kernel.name, kernel]),
);
