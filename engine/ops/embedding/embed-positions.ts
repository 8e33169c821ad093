import { columnSum } from '../column-sum/column-sum.ts';
import { fill } from '../fill/fill.ts';
import { elementsOf, type Graph, type Value } from '../graph.ts';
import { embedding } from './embedding.ts';
import { tokenGradient } from './token-gradient.ts';

/**
 * out[b·T + t] = weight[tokens[b·T + t]] + positions[t]: a learned embedding of tokens and of where they stand. tokens [B·T],
 * weight [V, D], positions [P, D], of which the first T ≤ P rows are used; the gradient of the others is 0.
 */
export function embedPositions(
  g: Graph,
  tokens: Value,
  weight: Value,
  positions: Value,
  shape: { readonly batch: number; readonly tokens: number },
  name: string,
): Value {
  const { batch: B, tokens: T } = shape;
  const [P, D] = positions.shape;
  const R = B * T;
  const out = g.activation(name, [R, D]);
  g.emit(embedding, [tokens, weight, positions, out], { R, D, scale: 1, T });
  g.gradientRule(out, () => {
    const dout = g.gradientOf(out);
    const dP = g.parameterGradient(positions);
    // The rows of a sequence are one long row; each sequence adds one.
    const C = T * D;
    const accumulate = dP.accumulate ? 1 : 0;
    g.emit(columnSum, [dout, dP.value], { R: B, C, xOffset: 0, ldx: C, outOffset: 0, accumulate });
    if (!dP.accumulate && P > T) g.emit(fill, [dP.value], { n: elementsOf(positions.shape) - C, offset: C, value: 0 });
    tokenGradient(g, tokens, weight, dout, 1);
  });
  return out;
}
