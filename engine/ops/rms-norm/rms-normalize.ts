import { addToEach } from '../add/residual.ts';
import { keepCopy } from '../copy/keep-copy.ts';
import { elementsOf, type Graph, type Value } from '../graph.ts';
import { rmsNorm } from './rms-norm.ts';
import { rmsNormGrad } from './rms-norm-grad.ts';
import { rmsNormGradWeight } from './rms-norm-grad-weight.ts';
import { rmsNormResidual } from './rms-norm-residual.ts';

export interface RmsNormWeight {
  readonly weight: Value;
  readonly eps: number;
}

/** The root-mean-square norm over the last dimension of x [R, D], as LlamaRMSNorm has it. */
export function rmsNormalize(g: Graph, x: Value, { weight, eps }: RmsNormWeight, name: string): Value {
  const { R, D, y, rstd } = outputs(g, x, weight, name);
  g.emit(rmsNorm, [x, weight, y, rstd], { R, D, eps });
  normalizeAgain(g, x, { weight, eps }, y);
  g.gradientRule(y, () => gradients(g, { y, s: x, rstd, weight }));
  return y;
}

/** sum = x + residual and its root-mean-square norm y, in one kernel: where a sub-layer of a pre-norm transformer ends. */
export function addRmsNormalize(
  g: Graph,
  x: Value,
  residual: Value,
  { weight, eps }: RmsNormWeight,
  name: string,
): { sum: Value; y: Value } {
  const { R, D, y, rstd } = outputs(g, x, weight, name);
  const sum = g.activation(`${name}.sum`, [R, D]);
  g.emit(rmsNormResidual, [x, residual, weight, sum, y, rstd], { R, D, eps });
  normalizeAgain(g, sum, { weight, eps }, y);
  g.gradientRule(y, () => {
    addToEach(g, [x, residual], gradients(g, { y, s: sum, rstd, weight }));
  });
  return { sum, y };
}

/** Backward has the norm again from its input, which it needs as well: that is kept, and a small copy of the weight. */
function normalizeAgain(g: Graph, x: Value, { weight, eps }: RmsNormWeight, y: Value): void {
  g.again(y, () => {
    const scale = keepCopy(g, weight, 'weight');
    return () => {
      const { R, D, y: again, rstd } = outputs(g, x, weight, 'again');
      g.emit(rmsNorm, [x, scale, again, rstd], { R, D, eps });
      return again;
    };
  });
}

function outputs(g: Graph, x: Value, weight: Value, name: string) {
  const [D] = weight.shape;
  const R = elementsOf(x.shape) / D;
  return { R, D, y: g.activation(name, [R, D]), rstd: g.statistics(`${name}.rstd`, [R]) };
}

/** Writes the gradients of the weight and of the input s; gives that of s. */
function gradients(g: Graph, n: { y: Value; s: Value; rstd: Value; weight: Value }): Value {
  const dy = g.gradientOf(n.y);
  const [R, D] = n.y.shape;
  const dWeight = g.parameterGradient(n.weight);
  const accumulate = dWeight.accumulate ? 1 : 0;
  g.emit(rmsNormGradWeight, [dy, n.s, n.rstd, dWeight.value], { R, D, accumulate });
  const ds = g.gradientTarget(n.s);
  g.emit(rmsNormGrad, [dy, n.s, n.rstd, n.weight, ds.value], { R, D, accumulate: ds.accumulate ? 1 : 0 });
  return ds.value;
}
