import { fill } from '../fill/fill.ts';
import { elementsOf, type Graph, type Value } from '../graph.ts';
import { embeddingGrad } from './embedding-grad.ts';

/**
 * Adds dout·scale into the rows of `weight`'s gradient that the tokens name. Where no use has written the gradient yet it is
 * cleared first; a tied head that has written all of it is added to.
 */
export function tokenGradient(g: Graph, tokens: Value, weight: Value, dout: Value, scale: number): void {
  const dW = g.parameterGradient(weight);
  if (!dW.accumulate) g.emit(fill, [dW.value], { n: elementsOf(weight.shape), offset: 0, value: 0 });
  g.emit(embeddingGrad, [tokens, dout, dW.value], { R: elementsOf(tokens.shape), D: weight.shape[1], scale });
}
