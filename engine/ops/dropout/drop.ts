import { add } from '../add/add.ts';
import { elementsOf, type Graph, type Value } from '../graph.ts';
import { dropout } from './dropout.ts';

/** A place where a model drops, with probability `dropout`; the mask is a function of these, the step and the element. */
export interface DropoutSite {
  readonly dropout: number;
  readonly maskKey0: number;
  readonly maskKey1: number;
}

/** Inverted dropout of x, the same mask forward and backward. With probability 0 it is x itself. */
export function drop(g: Graph, x: Value, site: DropoutSite, name: string): Value {
  if (site.dropout === 0) return x;
  const n = elementsOf(x.shape);
  const out = g.activation(name, x.shape);
  g.emit(dropout, [x, g.control, out], { n, ...site });
  g.gradientRule(out, () => {
    const dout = g.gradientOf(out);
    const dx = g.gradientTarget(x);
    if (!dx.accumulate) return g.emit(dropout, [dout, g.control, dx.value], { n, ...site });
    const part = g.workspace(`${name}.grad.part`, x.shape);
    g.emit(dropout, [dout, g.control, part], { n, ...site });
    g.emit(add, [dx.value, part], { n });
  });
  return out;
}
