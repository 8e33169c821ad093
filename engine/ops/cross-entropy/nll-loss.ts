import type { Graph, Value } from '../graph.ts';
import { crossEntropy } from './cross-entropy.ts';
import { crossEntropyGrad } from './cross-entropy-grad.ts';
import { crossEntropyChunks, crossEntropyPartial } from './cross-entropy-partial.ts';
import { lossMean } from './loss-mean.ts';

/**
 * Mean of −log softmax(logits)[target] into the control tensor, as log_softmax + nll_loss have it. logits [R, stride], of
 * which V columns count; targets [R]. `weight` is this micro-batch's part of the step (1 / micro-batches), `first` whether
 * it starts the sum. The gradient replaces the logits in place.
 */
export function nllLoss(
  g: Graph,
  logits: Value,
  targets: Value,
  vocabSize: number,
  weight: number,
  first: boolean,
): void {
  const [R, ld] = logits.shape;
  const V = vocabSize;
  const chunks = crossEntropyChunks(V);
  const partial = g.workspace('loss.partial', [R, chunks, 2]);
  const rowLoss = g.workspace('loss.rows', [R]);
  const logSum = g.statistics('loss.lse', [R]);
  g.emit(crossEntropyPartial, [logits, partial], { R, V, ld, chunks });
  g.emit(crossEntropy, [logits, targets, partial, rowLoss, logSum], { R, V, ld, chunks, firstRow: 0 });
  g.emit(lossMean, [rowLoss, g.control], { R, scale: weight / R, accumulate: first ? 0 : 1 });
  g.gradientRule(g.control, () => {
    g.emit(crossEntropyGrad, [logits, targets, logSum], { R, V, ld, firstRow: 0, scale: weight / R });
    g.shareGradient(logits, logits);
  });
}
