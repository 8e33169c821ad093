import { columnSum } from '../column-sum/column-sum.ts';
import { elementsOf, type Graph, type Value } from '../graph.ts';
import { matmulNNBias, matmulNT, matmulTN } from '../matmul/matmul.ts';

/**
 * A linear layer whose weight is stored [in, out], as Hugging Face's Conv1D has it: y = x·W + b. x [R, K], W [K, N], b [N] →
 * y [R, N]; `hidden`: the hidden layer of a feed-forward. Gradients: dW = xᵀ·dy, db = Σ rows of dy, dx = dy·Wᵀ; dx last, so that the weight's last use ends the rule.
 */
export function conv1d(g: Graph, x: Value, weight: Value, bias: Value, name: string, hidden = false): Value {
  const [K, N] = weight.shape;
  const R = elementsOf(x.shape) / K;
  const from = { aOffset: 0, bOffset: 0, cOffset: 0 };
  const params = { M: R, N, K, lda: K, ldb: N, ldc: N, ...from, accumulate: 0, biasOffset: 0, relu: 0 };
  const forward = () => {
    const made = g.activation(name, [R, N]);
    g.emit(matmulNNBias, [x, weight, made, bias], params);
    return made;
  };
  const y = forward();
  if (hidden) g.hiddenAgain(y, forward);
  g.gradientRule(y, () => {
    const dy = g.gradientOf(y);
    const dW = g.parameterGradient(weight);
    const toWeight = { M: K, N, K: R, lda: K, ldb: N, ldc: N, ...from, accumulate: dW.accumulate ? 1 : 0 };
    g.emit(matmulTN, [x, dy, dW.value], toWeight);
    const db = g.parameterGradient(bias);
    const toBias = { R, C: N, xOffset: 0, ldx: N, outOffset: 0, accumulate: db.accumulate ? 1 : 0 };
    g.emit(columnSum, [dy, db.value], toBias);
    const dx = g.gradientTarget(x);
    const toInput = { M: R, N: K, K: N, lda: N, ldb: N, ldc: K, ...from, accumulate: dx.accumulate ? 1 : 0 };
    g.emit(matmulNT, [dy, weight, dx.value], toInput);
  });
  return y;
}
