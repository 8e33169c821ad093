import { headLogits, headLoss } from '../ops/cross-entropy/head-loss.ts';
import type { Graph, Value } from '../ops/graph.ts';
import { batchName } from './dropout-sites.ts';
import type { TraceContext } from './model.ts';

/** What decoder-only models end with: a linear head without bias over the hidden states, and the loss at every position. */

/** Its hidden states [R, D] and the weight [V, D] of its head, `lm_head`. */
export interface LanguageEnd {
  readonly hidden: Value;
  readonly weight: Value;
}

/** Logits of the head, [R, stride]. */
export function languageLogits(g: Graph, { hidden, weight }: LanguageEnd): Value {
  return headLogits(g, hidden, { module: 'lm_head', weight, bias: null });
}

/** The mean cross-entropy of the head's logits against the batch tensor `target`, at every position, without a shift. */
export function languageLoss(g: Graph, { hidden, weight }: LanguageEnd, context: TraceContext): void {
  const { microBatch = 0, microBatches = 1 } = context;
  const target = g.batch(batchName('target', microBatch), [hidden.shape[0]]);
  const head = { module: 'lm_head', weight, bias: null };
  g.within('', () => headLoss(g, hidden, head, target, { weight: 1 / microBatches, first: microBatch === 0 }));
}
