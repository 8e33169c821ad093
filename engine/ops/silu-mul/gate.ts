import type { Graph, Value } from '../graph.ts';
import { siluMul } from './silu-mul.ts';
import { siluMulGrad } from './silu-mul-grad.ts';

/**
 * silu(gate)·up of rows that hold both side by side: gateUp [R, 2·I] → [R, I]. The gradient takes the place of the input,
 * which nothing else may read.
 */
export function gateSilu(g: Graph, gateUp: Value, name: string): Value {
  const [R, width] = gateUp.shape;
  const I = width / 2;
  const out = g.activation(name, [R, I]);
  g.emit(siluMul, [gateUp, out], { R, I });
  g.again(out, () => () => {
    const again = g.activation(`${name} again`, [R, I]);
    g.emit(siluMul, [gateUp, again], { R, I });
    return again;
  });
  g.gradientRule(out, () => {
    g.emit(siluMulGrad, [g.gradientOf(out), gateUp], { R, I });
    g.shareGradient(gateUp, gateUp);
  });
  return out;
}
