import { elementsOf, type Graph, type Value } from '../graph.ts';
import { inputGradientRows, type LinearBlock, linear, linearGradients, weightGradient } from '../linear/linear.ts';
import { project } from '../linear/project.ts';
import { matmulNT, matmulNTBias } from '../matmul/matmul.ts';
import { crossEntropy } from './cross-entropy.ts';
import { crossEntropyGrad } from './cross-entropy-grad.ts';
import { crossEntropyChunks, crossEntropyPartial } from './cross-entropy-partial.ts';
import { headRows } from './head-rows.ts';
import { lossMean } from './loss-mean.ts';
import { nllLoss } from './nll-loss.ts';

/** The linear layer that a language model ends with: weight [V, K], the module that it belongs to. */
export interface Head {
  readonly module: string;
  readonly weight: Value;
  readonly bias: Value | null;
}

/** A micro-batch's part in the loss of its step: its weight (1 / micro-batches), and whether it starts the sum. */
export interface LossPart {
  readonly weight: number;
  readonly first: boolean;
}

/** Logits x·Wᵀ (+ b) of a head, x [R, K] → [R, stride]; rows start on 16 bytes. */
export function headLogits(g: Graph, x: Value, { module, weight, bias }: Head): Value {
  const options = { name: 'logits', rowStride: strideOf(weight) };
  return g.within(module, () =>
    bias ? linear(g, x, weight, bias, options) : project(g, x, [{ module, weight }], options),
  );
}

/**
 * Mean cross-entropy of a head over x [R, K] against targets [R], into the control tensor, as log_softmax + nll_loss have it.
 * Large logits are made some rows at a time (`headRows`), each followed at once by its losses, its gradient in its place and
 * that gradient's products: only one piece is there at a time, and no product is made twice. Rows' losses and dx are as
 * without pieces; dW and db are added up over them in order.
 */
export function headLoss(g: Graph, x: Value, head: Head, targets: Value, part: LossPart): void {
  const [R] = targets.shape;
  const rows = headRows(R, strideOf(head.weight));
  if (rows >= R) {
    nllLoss(g, headLogits(g, x, head), targets, head.weight.shape[0], part.weight, part.first);
    return;
  }
  const pieces = () => g.within(head.module, () => lossInPieces(g, x, head, targets, part, rows));
  if (g.isForwardOnly) pieces();
  else g.turn(pieces);
}

function lossInPieces(g: Graph, x: Value, head: Head, targets: Value, part: LossPart, rows: number): void {
  const { weight, bias } = head;
  const [V, K] = weight.shape;
  const R = elementsOf(x.shape) / K;
  const ld = strideOf(weight);
  const chunks = crossEntropyChunks(V);
  const scale = part.weight / R;
  const logits = g.activation('logits', [rows, ld]);
  const partial = g.workspace('loss.partial', [rows, chunks, 2]);
  const rowLoss = g.workspace('loss.rows', [R]);
  const logSum = g.statistics('loss.lse', [R]);
  const dx = g.isForwardOnly ? null : g.gradientTarget(x);
  for (let firstRow = 0; firstRow < R; firstRow += rows) {
    const here = Math.min(rows, R - firstRow);
    const from = { aOffset: firstRow * K, lda: K, bOffset: 0, ldb: K };
    const product = { M: here, N: V, K, ...from, cOffset: 0, ldc: ld, accumulate: 0 };
    if (bias) g.emit(matmulNTBias, [x, weight, logits, bias], { ...product, biasOffset: 0, relu: 0 });
    else g.emit(matmulNT, [x, weight, logits], product);
    g.emit(crossEntropyPartial, [logits, partial], { R: here, V, ld, chunks });
    const operands = [logits, targets, partial, rowLoss, logSum];
    g.emit(crossEntropy, operands, { R: here, V, ld, chunks, firstRow });
    if (!dx) continue;
    g.emit(crossEntropyGrad, [logits, targets, logSum], { R: here, V, ld, firstRow, scale });
    const block: LinearBlock = {
      x,
      dy: logits,
      weight,
      R: here,
      inputRow: firstRow,
      firstRow: 0,
      rows: V,
      stride: ld,
      column: 0,
    };
    if (bias) linearGradients(g, [block], bias);
    else weightGradient(g, block, g.parameterGradient(weight));
    inputGradientRows(g, block, dx);
  }
  g.emit(lossMean, [rowLoss, g.control], { R, scale, accumulate: part.first ? 0 : 1 });
}

function strideOf(weight: Value): number {
  return Math.ceil(weight.shape[0] / 4) * 4;
}
