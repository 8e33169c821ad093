import { addToEach } from '../add/residual.ts';
import { keepCopy } from '../copy/keep-copy.ts';
import { elementsOf, type Graph, type Value } from '../graph.ts';
import { layerNorm } from './layer-norm.ts';
import { layerNormGrad } from './layer-norm-grad.ts';
import { layerNormGradWeight } from './layer-norm-grad-weight.ts';
import { layerNormResidual } from './layer-norm-residual.ts';

export interface NormWeights {
  readonly weight: Value;
  readonly bias: Value;
  readonly eps: number;
}

/** LayerNorm over the last dimension of x [R, D], as torch.nn.LayerNorm: biased variance, eps inside the root. */
export function normalize(g: Graph, x: Value, { weight, bias, eps }: NormWeights, name: string): Value {
  const { R, D, y, stats } = outputs(g, x, weight, name);
  g.emit(layerNorm, [x, weight, bias, y, stats], { R, D, eps });
  normalizeAgain(g, x, { weight, bias, eps }, y);
  g.gradientRule(y, () => {
    const dy = g.gradientOf(y);
    weightGradients(g, { dy, s: x, stats, weight, bias, R, D });
    const dx = g.gradientTarget(x);
    g.emit(layerNormGrad, [dy, x, stats, weight, dx.value], { R, D, accumulate: dx.accumulate ? 1 : 0 });
  });
  return y;
}

/**
 * sum = x + residual and y = LayerNorm(sum), in one kernel: the post-norm step of a transformer layer, or, where the sum is
 * used again, the pre-norm one. Both inputs have the same gradient, that of their sum: it is computed once and shared.
 */
export function addNormalize(
  g: Graph,
  x: Value,
  residual: Value,
  { weight, bias, eps }: NormWeights,
  name: string,
): { sum: Value; y: Value } {
  const { R, D, y, stats } = outputs(g, x, weight, name);
  const sum = g.activation(`${name}.sum`, [R, D]);
  g.emit(layerNormResidual, [x, residual, weight, bias, sum, y, stats], { R, D, eps });
  normalizeAgain(g, sum, { weight, bias, eps }, y);
  g.gradientRule(y, () => {
    const dy = g.gradientOf(y);
    weightGradients(g, { dy, s: sum, stats, weight, bias, R, D });
    const ds = g.gradientTarget(sum);
    g.emit(layerNormGrad, [dy, sum, stats, weight, ds.value], { R, D, accumulate: ds.accumulate ? 1 : 0 });
    addToEach(g, [x, residual], ds.value);
  });
  return { sum, y };
}

/** Backward has the norm again from its input, which it needs as well: that is kept, and small copies of the weights. */
function normalizeAgain(g: Graph, x: Value, { weight, bias, eps }: NormWeights, y: Value): void {
  g.again(y, () => {
    const [scale, shift] = [keepCopy(g, weight, 'weight'), keepCopy(g, bias, 'bias')];
    return () => {
      const { R, D, y: again, stats } = outputs(g, x, weight, 'again');
      g.emit(layerNorm, [x, scale, shift, again, stats], { R, D, eps });
      return again;
    };
  });
}

function outputs(g: Graph, x: Value, weight: Value, name: string) {
  const [D] = weight.shape;
  const R = elementsOf(x.shape) / D;
  return { R, D, y: g.activation(name, [R, D]), stats: g.statistics(`${name}.stats`, [R, 2]) };
}

function weightGradients(
  g: Graph,
  n: { dy: Value; s: Value; stats: Value; weight: Value; bias: Value; R: number; D: number },
): void {
  const dWeight = g.parameterGradient(n.weight);
  const dBias = g.parameterGradient(n.bias);
  g.emit(layerNormGradWeight, [n.dy, n.s, n.stats, dWeight.value, dBias.value], {
    R: n.R,
    D: n.D,
    accumulate: dWeight.accumulate ? 1 : 0,
  });
}
