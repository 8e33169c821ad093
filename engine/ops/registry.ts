import { attention } from './attention/attention.ts';
import { attentionGradKV } from './attention/attention-grad-kv.ts';
import { attentionGradQ } from './attention/attention-grad-q.ts';
import { columnSum } from './column-sum/column-sum.ts';
import { dropout } from './dropout/dropout.ts';
import { embedding } from './embedding/embedding.ts';
import { embeddingGrad } from './embedding/embedding-grad.ts';
import type { Kernel } from './kernel.ts';
import { matmulNN, matmulNT, matmulNTBias, matmulTN } from './matmul/matmul.ts';

/** Every kernel, by name. */
export const kernels: ReadonlyMap<string, Kernel> = new Map(
  (
    [
      // One a line, by folder.
      attention,
      attentionGradQ,
      attentionGradKV,
      columnSum,
      dropout,
      embedding,
      embeddingGrad,
      matmulNT,
      matmulNN,
      matmulTN,
      matmulNTBias,
    ] as readonly Kernel[]
  ).map((kernel) => [kernel.name, kernel]),
);
