import { elementsOf, type Graph, type Value } from '../graph.ts';
import { gelu } from './gelu.ts';
import { geluGrad } from './gelu-grad.ts';

/** GELU's tanh form of each element of x. Its gradient is that of the output, changed in place. */
export function activateGelu(g: Graph, x: Value, name: string): Value {
  const n = elementsOf(x.shape);
  const out = g.activation(name, x.shape);
  g.emit(gelu, [x, out], { n });
  g.again(out, () => () => {
    const again = g.activation(`${name} again`, x.shape);
    g.emit(gelu, [x, again], { n });
    return again;
  });
  g.gradientRule(out, () => {
    const d = g.gradientOf(out);
    g.emit(geluGrad, [x, d], { n });
    g.shareGradient(x, d);
  });
  return out;
}
