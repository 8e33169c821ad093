import { nllLoss } from '../ops/cross-entropy/nll-loss.ts';
import type { Graph, Value } from '../ops/graph.ts';
import { project } from '../ops/linear/project.ts';
import { batchName } from './dropout-sites.ts';
import type { TraceContext } from './model.ts';

/** What decoder-only models end with: a linear head without bias over the hidden states, and the loss at every position. */

/** Logits x·Wᵀ of the head `lm_head`, x [R, D], W [V, D] → [R, stride]; rows start on 16 bytes. */
export function languageHead(g: Graph, x: Value, weight: Value): Value {
  const rowStride = Math.ceil(weight.shape[0] / 4) * 4;
  return g.within('lm_head', () => project(g, x, [{ module: 'lm_head', weight }], { name: 'logits', rowStride }));
}

/** The mean cross-entropy of the logits against the batch tensor `target`, at every position, without a shift. */
export function languageLoss(g: Graph, logits: Value, vocabSize: number, context: TraceContext): void {
  const { microBatch = 0, microBatches = 1 } = context;
  const target = g.batch(batchName('target', microBatch), [logits.shape[0]]);
  g.within('', () => nllLoss(g, logits, target, vocabSize, 1 / microBatches, microBatch === 0));
}
