import { CONTROL, CONTROL_ELEMENTS } from '../control.ts';
import type { Kernel, Params } from '../kernel.ts';
import type { KernelCase } from '../kernel-case.ts';
import { adam, adamHalf } from './adam.ts';
import { sgd, sgdHalf } from './sgd.ts';
import { sgdPlain, sgdPlainHalf } from './sgd-plain.ts';
import { stepAdvance } from './step-advance.ts';
import { stepControl } from './step-control.ts';
import { stepControlScaled } from './step-control-scaled.ts';
import { stepNorm } from './step-norm.ts';

/** Parameters of an update of everything, nothing clipped, at the control tensor's own rate. */
export const plainUpdate = { offset: 0, lr: 1, clipValue: 0 };

export const adamParams = {
  beta1: 0.9,
  beta2: 0.999,
  oneMinusBeta1: 1 - 0.9,
  oneMinusBeta2: 1 - 0.999,
  eps: 1e-8,
  weightDecay: 0,
  decoupled: 0,
  ...plainUpdate,
};

type Settings = Partial<Record<keyof typeof CONTROL, number>>;

/** A control tensor in the middle of a run. */
export function controlWith(settings: Settings): Float32Array<ArrayBuffer> {
  const control = new Float32Array(CONTROL_ELEMENTS);
  const defaults: Settings = {
    lrFactor: 0.01,
    clip: 1,
    t: 3,
    loss: 2,
    biasCorrection1: 1 - 0.9 ** 3,
    sqrtBiasCorrection2: Math.sqrt(1 - 0.999 ** 3),
  };
  for (const [name, value] of Object.entries({ ...defaults, ...settings })) {
    control[CONTROL[name as keyof typeof CONTROL]] = value;
  }
  return control;
}

/** The control tensor and values that fit Adam's state: second moments are not negative. */
function fillState(kernel: Kernel, settings: Settings): NonNullable<KernelCase['fill']> {
  return (operand, view, random) => {
    const { name } = kernel.operands[operand];
    if (name === 'control') view.set(controlWith(settings));
    else for (let i = 0; i < view.length; i++) view[i] = name === 'v' ? random() : random() * 2 - 1;
  };
}

function updateCase(name: string, kernel: Kernel, n: number, params: Params, settings: Settings = {}): KernelCase {
  return {
    kernel,
    name: `${name}: ${n}`,
    params: { n, ...params },
    operandElements: kernel.operands.map((operand) => (operand.name === 'control' ? CONTROL_ELEMENTS : n)),
    fill: fillState(kernel, settings),
    tolerance: 1e-6,
  };
}

/** An update of n elements from `offset` of tensors of `total`. */
function partCase(name: string, kernel: Kernel, total: number, offset: number, n: number, params: Params): KernelCase {
  const whole = updateCase(name, kernel, total, params);
  return { ...whole, params: { ...params, n, offset } };
}

function controlCase(
  name: string,
  sumSquares: number,
  entries: number,
  stopOnNonFinite: number,
  settings: Settings = {},
  maxNorm = 0,
): KernelCase {
  return {
    kernel: stepControl,
    name,
    params: { entries, stopOnNonFinite, maxNorm },
    operandElements: [CONTROL_ELEMENTS, 1, 2 * entries],
    fill(operand, view, random) {
      if (operand === 0) view.set(controlWith(settings));
      else for (let i = 0; i < view.length; i++) view[i] = operand === 1 ? sumSquares : random();
    },
    tolerance: 1e-6,
  };
}

function scaledCase(name: string, sumSquares: number, settings: Settings, maxNorm = 0): KernelCase {
  const scaled = { lossScale: 2 ** 16, ...settings };
  return { ...controlCase(name, sumSquares, 9, 0, scaled, maxNorm), kernel: stepControlScaled };
}

function advanceCase(name: string, settings: Settings = {}): KernelCase {
  const { fill, tolerance } = controlCase(name, 0, 9, 1, settings);
  const operandElements = [CONTROL_ELEMENTS, 18];
  return { kernel: stepAdvance, name, params: { entries: 9 }, operandElements, fill, tolerance };
}

function normCase(name: string, sumSquares: number): KernelCase {
  const { fill, tolerance } = controlCase(name, sumSquares, 9, 1);
  return { kernel: stepNorm, name, params: {}, operandElements: [CONTROL_ELEMENTS, 1], fill, tolerance };
}

const momentum = { momentum: 0.9, weightDecay: 0, nesterov: 0, ...plainUpdate };
const plain = { weightDecay: 0, ...plainUpdate };

export const cases: KernelCase[] = [
  updateCase('one element', adam, 1, adamParams),
  updateCase('nothing', adam, 0, adamParams),
  updateCase('a workgroup and one', adam, 65, adamParams),
  updateCase('decay in the gradient', adam, 257, { ...adamParams, weightDecay: 0.1 }),
  updateCase('decoupled decay', adam, 1031, { ...adamParams, weightDecay: 0.1, decoupled: 1 }),
  updateCase('short memory', adam, 67, { ...adamParams, beta1: 0.3, oneMinusBeta1: 0.7 }),
  updateCase('four at a time', adam, 2052, adamParams),
  updateCase('not finite', adam, 67, adamParams, { foundInf: 1 }),
  updateCase('halted', adam, 67, adamParams, { halted: 1 }),
  updateCase('clipped by norm', adam, 131, adamParams, { clip: 0.25 }),
  updateCase('clipped by value', adam, 131, { ...adamParams, clipValue: 0.3 }),
  updateCase('a group with its own rate', sgd, 67, { ...momentum, lr: 0.5 }),
  partCase('a part of the shard', adam, 200, 64, 100, adamParams),
  partCase('a part of the shard', sgd, 200, 3, 131, momentum),
  partCase('a part of the shard', sgdPlain, 200, 199, 1, plain),
  updateCase('first step', sgd, 131, momentum, { t: 1 }),
  updateCase('later step', sgd, 131, { ...momentum, weightDecay: 0.1 }),
  updateCase('Nesterov', sgd, 131, { ...momentum, nesterov: 1 }),
  updateCase('not finite', sgd, 67, momentum, { foundInf: 1 }),
  ...[adamHalf, sgdHalf, sgdPlainHalf].flatMap((kernel) => {
    const params = { adam: adamParams, sgd: momentum, 'sgd-plain': plain }[kernel.name.replace('-half', '')]!;
    // The last bit of a float32 result may decide to which half it goes.
    return [
      updateCase('halves', kernel, 1030, params),
      partCase('a part of the shard', kernel, 200, 8, 130, params),
      updateCase('not finite', kernel, 66, params, { foundInf: 1 }),
    ].map((c): KernelCase => ({ ...c, tolerance: 2 ** -10 }));
  }),
  updateCase('one element', sgdPlain, 1, plain),
  updateCase('a prime, with decay', sgdPlain, 1031, { ...plain, weightDecay: 0.1 }),
  updateCase('halted', sgdPlain, 67, plain, { halted: 1 }),
  scaledCase('an ordinary step', 4.5 * 2 ** 32, {}),
  scaledCase('the scale grows', 4.5 * 2 ** 32, { goodSteps: 1999 }),
  scaledCase('gradients overflow', Number.POSITIVE_INFINITY, { goodSteps: 7 }),
  scaledCase('the least scale', Number.NaN, { lossScale: 2 ** -24 }),
  scaledCase('norm above the largest', 25 * 2 ** 32, {}, 2),
  controlCase('an ordinary step', 4.5, 9, 1),
  controlCase('beyond the table', 4.5, 2, 1),
  controlCase('norm of zero', 0, 9, 1),
  controlCase('gradients overflow', Number.POSITIVE_INFINITY, 9, 1),
  controlCase('gradients are not numbers, skip', Number.NaN, 9, 0),
  controlCase('halted before', 1, 9, 1, { halted: 1 }),
  controlCase('norm above the largest', 25, 9, 1, {}, 2),
  controlCase('norm below the largest', 1, 9, 1, {}, 2),
  advanceCase('an ordinary step'),
  advanceCase('beyond the table', { t: 70 }),
  advanceCase('a loss that is no number', { loss: Number.NaN }),
  advanceCase('a loss without end', { loss: Number.POSITIVE_INFINITY }),
  advanceCase('halted before', { halted: 1 }),
  normCase('an ordinary step', 4.5),
  normCase('gradients overflow', Number.POSITIVE_INFINITY),
  normCase('gradients are not numbers', Number.NaN),
];
