import type { DropoutSite } from '../dropout/drop.ts';
import type { Graph, Value } from '../graph.ts';
import { inputGradient, linearGradients } from '../linear/linear.ts';
import { matmulNTBias } from '../matmul/matmul.ts';
import { attention } from './attention.ts';
import { attentionGrad } from './attention-grad.ts';
import { attentionGradKV } from './attention-grad-kv.ts';
import { attentionGradQ } from './attention-grad-q.ts';
import { isShort } from './attention-short.ts';

export interface AttentionShape {
  readonly batch: number;
  readonly tokens: number;
  readonly heads: number;
  readonly headDim: number;
  /** Heads of keys and values, where several heads of queries share one (grouped-query attention). As many as heads if left out. */
  readonly kvHeads?: number;
  readonly causal: boolean;
}

/**
 * torch.nn.MultiheadAttention's packed input projection: rows 0 … D of W make the queries from `query`, rows D … 3D the
 * keys and values from `memory`. query, memory [R, D], W [3D, D], b [3D] → qkv [R, 3D].
 */
export function projectQkv(g: Graph, query: Value, memory: Value, weight: Value, bias: Value, name: string): Value {
  const D = weight.shape[1];
  const R = query.shape[0];
  const qkv = g.activation(name, [R, 3 * D]);
  const blocks =
    query === memory
      ? [{ x: query, firstRow: 0, rows: 3 * D }]
      : [
          { x: query, firstRow: 0, rows: D },
          { x: memory, firstRow: D, rows: 2 * D },
        ];
  for (const { x, firstRow, rows } of blocks)
    g.emit(matmulNTBias, [x, weight, qkv, bias], {
      M: R,
      N: rows,
      K: D,
      aOffset: 0,
      lda: D,
      bOffset: firstRow * D,
      ldb: D,
      cOffset: firstRow,
      ldc: 3 * D,
      accumulate: 0,
      biasOffset: firstRow,
      relu: 0,
    });
  g.gradientRule(qkv, () => {
    const dy = g.gradientOf(qkv);
    const parts = blocks.map((b) => ({ ...b, dy, weight, R, stride: 3 * D, column: b.firstRow }));
    linearGradients(g, parts, bias);
    for (const part of parts.reverse()) inputGradient(g, part);
  });
  return qkv;
}

/**
 * softmax(q·kᵀ/√headDim)·v per head over packed qkv [B·T, (heads + 2·kvHeads)·headDim] → [B·T, heads·headDim]. Forward keeps the log of each row's sum;
 * backward recomputes the probabilities from it (FlashAttention-2, Dao 2023), so no T×T tensor exists.
 */
export function attend(g: Graph, qkv: Value, shape: AttentionShape, site: DropoutSite, name: string): Value {
  const { heads, headDim, kvHeads = heads } = shape;
  const D = heads * headDim;
  const kvWidth = kvHeads * headDim;
  const R = shape.batch * shape.tokens;
  const params = {
    B: shape.batch,
    T: shape.tokens,
    H: heads,
    HD: headDim,
    groupSize: heads / kvHeads,
    stride: D + 2 * kvWidth,
    qOffset: 0,
    kOffset: D,
    vOffset: D + kvWidth,
    causal: shape.causal ? 1 : 0,
    ...site,
  };
  const out = g.activation(name, [R, D]);
  const logSum = g.statistics(`${name}.lse`, [shape.batch, shape.heads, shape.tokens]);
  g.emit(attention, [qkv, g.control, out, logSum], params);
  g.gradientRule(out, () => {
    const dout = g.gradientOf(out);
    const dqkv = g.gradientTarget(qkv).value;
    if (isShort(params)) {
      g.emit(attentionGrad, [qkv, g.control, out, dout, logSum, dqkv], params);
      return;
    }
    const delta = g.workspace(`${name}.delta`, logSum.shape);
    g.emit(attentionGradQ, [qkv, g.control, out, dout, logSum, dqkv, delta], params);
    g.emit(attentionGradKV, [qkv, g.control, dout, logSum, delta, dqkv], params);
  });
  return out;
}
