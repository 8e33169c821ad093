import { add } from '../add/add.ts';
import { addToEach } from '../add/residual.ts';
import { keepCopy } from '../copy/keep-copy.ts';
import type { DropoutSite } from '../dropout/drop.ts';
import { elementsOf, type Graph, type Value } from '../graph.ts';
import { layerNorm } from './layer-norm.ts';
import { layerNormGrad, layerNormGradDrop } from './layer-norm-grad.ts';
import { layerNormGradWeight } from './layer-norm-grad-weight.ts';
import { layerNormGrads } from './layer-norm-grads.ts';
import { layerNormDropResidual, layerNormResidual } from './layer-norm-residual.ts';

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
  g.gradientRule(y, () => gradients(g, { dy: g.gradientOf(y), s: x, stats, weight, bias, R, D }));
  return y;
}

/**
 * sum = x + residual, or dropout(x) + residual, and y = LayerNorm(sum), in one kernel: the post-norm step of a transformer
 * layer, or, where the sum is used again, the pre-norm one. Without dropout both inputs have the same gradient, that of
 * their sum: it is computed once and shared.
 */
export function addNormalize(
  g: Graph,
  x: Value,
  residual: Value,
  { weight, bias, eps }: NormWeights,
  name: string,
  site: DropoutSite | null = null,
): { sum: Value; y: Value } {
  const { R, D, y, stats } = outputs(g, x, weight, name);
  const sum = g.activation(`${name}.sum`, [R, D]);
  const drops = site !== null && site.dropout > 0 ? site : null;
  if (drops) {
    const params = { R, D, eps, ...drops };
    g.emit(layerNormDropResidual, [x, residual, weight, bias, g.control, sum, y, stats], params);
  } else g.emit(layerNormResidual, [x, residual, weight, bias, sum, y, stats], { R, D, eps });
  normalizeAgain(g, sum, { weight, bias, eps }, y);
  g.gradientRule(y, () => {
    const norm = { dy: g.gradientOf(y), s: sum, stats, weight, bias, R, D };
    if (drops) {
      addToEach(g, [residual], droppedGradients(g, norm, x, drops));
      return;
    }
    addToEach(g, [x, residual], gradients(g, norm));
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

interface NormGradients {
  readonly dy: Value;
  /** The norm's input. */
  readonly s: Value;
  readonly stats: Value;
  readonly weight: Value;
  readonly bias: Value;
  readonly R: number;
  readonly D: number;
}

/** Gradients in the norm's input, which is returned, and in its weight and bias. */
function gradients(g: Graph, n: NormGradients): Value {
  const { dy, s, stats, weight, R, D } = n;
  const weights = weightTargets(g, n);
  const { values, accumulate: weightAccumulate } = weights;
  const all = values.every(({ role }) => role === 'parameter-gradient');
  if (!all) weightGradients(g, n, weights);
  const ds = g.gradientTarget(s);
  const inputs = [dy, s, stats, weight, ds.value];
  const params = { R, D, accumulate: ds.accumulate ? 1 : 0 };
  if (all) g.emit(layerNormGrads, [...inputs, ...values], { ...params, weightAccumulate });
  else g.emit(layerNormGrad, inputs, params);
  return ds.value;
}

/** The same where the input is a sum with what was dropped of `x`; that gradient goes to x. */
function droppedGradients(g: Graph, n: NormGradients, x: Value, site: DropoutSite): Value {
  const { dy, s, stats, weight, R, D } = n;
  weightGradients(g, n, weightTargets(g, n));
  const ds = g.gradientTarget(s);
  const dx = g.gradientTarget(x);
  const dropped = dx.accumulate ? g.workspace('dropped.grad.part', x.shape) : dx.value;
  const params = { R, D, accumulate: ds.accumulate ? 1 : 0, ...site };
  g.emit(layerNormGradDrop, [dy, s, stats, weight, ds.value, g.control, dropped], params);
  if (dx.accumulate) g.emit(add, [dx.value, dropped], { n: R * D });
  return ds.value;
}

/** Where the gradients of weight and bias go, and whether both are added to what is there; asked for once. */
function weightTargets(g: Graph, { weight, bias }: NormGradients) {
  const [dWeight, dBias] = [g.parameterGradient(weight), g.parameterGradient(bias)];
  return { values: [dWeight.value, dBias.value], accumulate: dWeight.accumulate ? 1 : 0 };
}

function weightGradients(
  g: Graph,
  { dy, s, stats, R, D }: NormGradients,
  { values, accumulate }: ReturnType<typeof weightTargets>,
): void {
  g.emit(layerNormGradWeight, [dy, s, stats, ...values], { R, D, accumulate });
}
