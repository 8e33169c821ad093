import { columnSum } from '../column-sum/column-sum.ts';
import type { DropoutSite } from '../dropout/drop.ts';
import { dropoutInPlace } from '../dropout/dropout-in-place.ts';
import { dropoutScale } from '../dropout/dropout-mask.ts';
import { elementsOf, type GradientTarget, type Graph, type Value } from '../graph.ts';
import type { Params } from '../kernel.ts';
import { matmulNN, matmulNTBias, matmulTN, matmulTNSums } from '../matmul/matmul.ts';
import { matmulNNGated, matmulNTReluDrop } from '../matmul/matmul-hidden.ts';
import { reluGrad } from '../relu-grad/relu-grad.ts';

/**
 * Up to so many rows, sums over rows are short and a dispatch costs as much as its work: the bias's gradient is added along
 * with the weight's, and activation functions are part of the products beside them.
 */
const FEW_ROWS = 64;

export interface LinearOptions {
  readonly name: string;
  readonly relu?: boolean;
  /** With `relu`: where its output is dropped, in place. What is 0 tells what was dropped as well, so no more is kept. */
  readonly drop?: DropoutSite;
  /** Distance of two rows of the output, when they are padded. */
  readonly rowStride?: number;
}

/**
 * y = x·Wᵀ + b, then max(0, ·) if `relu`, then dropout if `drop`. x [R, K], W [N, K], b [N] → y [R, N] (rows `rowStride` apart).
 * Gradients: dW = dyᵀ·x, db = Σ rows of dy, dx = dy·W, as torch.nn.functional.linear has them; dx last, so that the
 * weight's last use ends the rule.
 */
export function linear(g: Graph, x: Value, weight: Value, bias: Value, options: LinearOptions): Value {
  const [N, K] = weight.shape;
  const R = elementsOf(x.shape) / K;
  const stride = options.rowStride ?? N;
  const n = R * stride;
  const dropout = options.drop?.dropout ?? 0;
  const params = {
    M: R,
    N,
    K,
    aOffset: 0,
    lda: K,
    bOffset: 0,
    ldb: K,
    cOffset: 0,
    ldc: stride,
    accumulate: 0,
    biasOffset: 0,
    relu: options.relu ? 1 : 0,
  };
  const forward = () => {
    const made = g.activation(options.name, [R, stride]);
    if (options.relu && options.drop && dropout > 0 && R <= FEW_ROWS) {
      g.emit(matmulNTReluDrop, [x, weight, made, bias, g.control], { ...params, ...options.drop });
      return made;
    }
    g.emit(matmulNTBias, [x, weight, made, bias], params);
    if (options.drop && dropout > 0) g.emit(dropoutInPlace, [made, g.control], { n, ...options.drop });
    return made;
  };
  const y = forward();
  const scale = dropoutScale(dropout);
  if (options.relu) {
    g.hiddenAgain(y, forward);
    if (R <= FEW_ROWS) g.gate(y, scale);
  }
  g.gradientRule(y, () => {
    const dy = g.gradientOf(y);
    if (options.relu && !g.isPastGate(y)) g.emit(reluGrad, [y, dy], { n, scale });
    const block = { x, dy, weight, R, firstRow: 0, rows: N, stride, column: 0 };
    linearGradients(g, [block], bias);
    inputGradient(g, block);
  });
  return y;
}

/** A block of rows of a weight applied to one input: columns `column` … `column + rows` of dy belong to it. */
export interface LinearBlock {
  readonly x: Value;
  readonly dy: Value;
  readonly weight: Value;
  readonly R: number;
  /** Where its R rows begin in x, if not with the first. */
  readonly inputRow?: number;
  readonly firstRow: number;
  readonly rows: number;
  readonly stride: number;
  readonly column: number;
}

/** dW and db of a whole weight, from the blocks that it is made of, in order. */
export function linearGradients(g: Graph, blocks: readonly LinearBlock[], bias: Value): void {
  const [first] = blocks;
  const dW = g.parameterGradient(first.weight);
  const db = g.parameterGradient(bias);
  const both = dW.value.role === 'parameter-gradient' && db.value.role === 'parameter-gradient';
  const sumsAccumulate = db.accumulate ? 1 : 0;
  if (both && first.R <= FEW_ROWS) {
    for (const block of blocks)
      g.emit(matmulTNSums, [block.dy, block.x, dW.value, db.value], {
        ...weightGradientParams(block, dW.accumulate),
        sumsOffset: block.firstRow,
        sumsAccumulate,
      });
    return;
  }
  for (const block of blocks) weightGradient(g, block, dW);
  g.emit(columnSum, [first.dy, db.value], {
    R: first.R,
    C: blocks.reduce((rows, block) => rows + block.rows, 0),
    xOffset: first.column,
    ldx: first.stride,
    outOffset: 0,
    accumulate: sumsAccumulate,
  });
}

/** Rows `firstRow` … of dW (+)= dyᵀ·x. */
export function weightGradient(g: Graph, b: LinearBlock, dW: GradientTarget): void {
  g.emit(matmulTN, [b.dy, b.x, dW.value], weightGradientParams(b, dW.accumulate));
}

function weightGradientParams(b: LinearBlock, accumulate: boolean): Params {
  const K = b.weight.shape[1];
  return {
    M: b.rows,
    N: K,
    K: b.R,
    aOffset: b.column,
    lda: b.stride,
    bOffset: (b.inputRow ?? 0) * K,
    ldb: K,
    cOffset: b.firstRow * K,
    ldc: K,
    accumulate: accumulate ? 1 : 0,
  };
}

/** dx (+)= dy·W over the block's rows of W. */
export function inputGradient(g: Graph, b: LinearBlock): void {
  const dx = g.gradientTarget(b.x);
  const scale = dx.accumulate ? null : g.passGate(b.x);
  if (scale === null) inputGradientRows(g, b, dx);
  else g.emit(matmulNNGated, [b.dy, b.weight, dx.value, b.x], { ...inputGradientParams(b), scale });
}

/** The block's rows of dx (+)= dy·W, where `dx` is for all rows. */
export function inputGradientRows(g: Graph, b: LinearBlock, dx: GradientTarget): void {
  g.emit(matmulNN, [b.dy, b.weight, dx.value], { ...inputGradientParams(b), accumulate: dx.accumulate ? 1 : 0 });
}

function inputGradientParams(b: LinearBlock): Params {
  const K = b.weight.shape[1];
  return {
    M: b.R,
    N: K,
    K: b.rows,
    aOffset: b.column,
    lda: b.stride,
    bOffset: b.firstRow * K,
    ldb: K,
    cOffset: (b.inputRow ?? 0) * K,
    ldc: K,
  };
}
