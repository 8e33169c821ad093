import { elementsOf, type Graph, type Value } from '../graph.ts';
import { embedding } from './embedding.ts';
import { tokenGradient } from './token-gradient.ts';

/**
 * out[r] = weight[tokens[r]]·scale + row. tokens [R], weight [V, D], row [D] → [R, D]. The gradient adds dout·scale into
 * the rows of the tokens, position by position in order (torch.nn.functional.embedding's dense gradient).
 */
export function embed(g: Graph, tokens: Value, weight: Value, row: Value, scale: number, name: string): Value {
  const R = elementsOf(tokens.shape);
  const D = weight.shape[1];
  const out = g.activation(name, [R, D]);
  g.emit(embedding, [tokens, weight, row, out], { R, D, scale, T: 1 });
  g.gradientRule(out, () => tokenGradient(g, tokens, weight, g.gradientOf(out), scale));
  return out;
}
