import { elementsOf, type Graph, type Value } from '../graph.ts';
import { matmulNT } from '../matmul/matmul.ts';
import { inputGradient, weightGradient } from './linear.ts';

/** A linear layer without bias: its weight [N, K], and the module that its calls belong to. */
export interface ProjectLayer {
  readonly module: string;
  readonly weight: Value;
}

export interface ProjectOptions {
  readonly name: string;
  /** Distance of two rows of the output, when they are padded. */
  readonly rowStride?: number;
}

/**
 * Linear layers without bias over one input, their outputs side by side: y = [x·W₀ᵀ, x·W₁ᵀ, …]. x [R, K], Wᵢ [Nᵢ, K] →
 * y [R, N₀ + N₁ + …] (rows `rowStride` apart). In backward each layer has its weight's gradient and its part of the input's,
 * the last layer first.
 */
export function project(g: Graph, x: Value, layers: readonly ProjectLayer[], options: ProjectOptions): Value {
  const K = layers[0].weight.shape[1];
  const R = elementsOf(x.shape) / K;
  let width = 0;
  const blocks = layers.map((layer) => {
    const block = { ...layer, column: width, rows: layer.weight.shape[0] };
    width += block.rows;
    return block;
  });
  const stride = options.rowStride ?? width;
  const y = g.activation(options.name, [R, stride]);
  for (const { module, weight, rows, column } of blocks) {
    const from = { aOffset: 0, lda: K, bOffset: 0, ldb: K };
    const params = { M: R, N: rows, K, ...from, cOffset: column, ldc: stride, accumulate: 0 };
    g.within(module, () => g.emit(matmulNT, [x, weight, y], params));
  }
  g.gradientRule(y, () => {
    const dy = g.gradientOf(y);
    for (const { module, ...block } of blocks.reverse())
      g.within(module, () => {
        const part = { ...block, x, dy, R, firstRow: 0, stride };
        weightGradient(g, part, g.parameterGradient(part.weight));
        inputGradient(g, part);
      });
  });
  return y;
}
