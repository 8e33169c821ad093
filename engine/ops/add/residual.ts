import { elementsOf, type Graph, type Value } from '../graph.ts';
import { add } from './add.ts';

/**
 * The end of a sub-layer that no norm follows: branch += x, in place, so the sum takes no memory. The op that made `branch`
 * must not need its own output in backward. Returns the sum; its gradient is that of both, one tensor for the two.
 */
export function addResidual(g: Graph, branch: Value, x: Value): Value {
  g.emit(add, [branch, x], { n: elementsOf(x.shape) });
  g.gradientRule(branch, () => addToEach(g, [x], g.gradientOf(branch)));
  return branch;
}

/** Makes `gradient`, that of a sum, the gradient of each of its terms: shared where there is none yet, added where there is. */
export function addToEach(g: Graph, terms: readonly Value[], gradient: Value): void {
  for (const term of terms) {
    if (g.hasGradient(term)) g.emit(add, [g.gradientTarget(term).value, gradient], { n: elementsOf(term.shape) });
    else g.shareGradient(term, gradient);
  }
}
