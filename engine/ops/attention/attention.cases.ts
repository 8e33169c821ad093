import { CONTROL_ELEMENTS } from '../control.ts';
import { setStep } from '../dropout/dropout.cases.ts';
import type { Kernel } from '../kernel.ts';
import { caseViews, type KernelCase } from '../kernel-case.ts';
import { attention } from './attention.ts';
import { attentionGrad } from './attention-grad.ts';
import { attentionGradKV } from './attention-grad-kv.ts';
import { attentionGradQ } from './attention-grad-q.ts';

export interface AttentionShape {
  readonly name: string;
  readonly B: number;
  readonly T: number;
  readonly H: number;
  readonly HD: number;
  readonly causal: number;
  readonly dropout: number;
  /** Heads of queries that share a head of keys and values: 1 if left out. */
  readonly groupSize?: number;
  /** Elements after each row of qkv. */
  readonly padding?: number;
}

export const attentionShapes: readonly AttentionShape[] = [
  { name: 'one element', B: 1, T: 1, H: 1, HD: 1, causal: 0, dropout: 0 },
  { name: 'no rows', B: 0, T: 5, H: 2, HD: 4, causal: 0, dropout: 0 },
  { name: 'primes, padded rows', B: 2, T: 13, H: 3, HD: 5, causal: 0, dropout: 0, padding: 2 },
  { name: 'causal, dropout', B: 3, T: 17, H: 2, HD: 8, causal: 1, dropout: 0.2 },
  { name: 'not causal, dropout', B: 1, T: 35, H: 4, HD: 8, causal: 0, dropout: 0.5 },
  { name: 'short, causal, dropout', B: 2, T: 33, H: 2, HD: 16, causal: 1, dropout: 0.2, padding: 4 },
  { name: 'a workgroup and one, causal', B: 1, T: 65, H: 1, HD: 16, causal: 1, dropout: 0 },
  {
    name: 'more than two workgroups, causal, dropout',
    B: 1,
    T: 139,
    H: 2,
    HD: 12,
    causal: 1,
    dropout: 0.1,
    padding: 1,
  },
  {
    name: 'grouped, causal, dropout, padded',
    B: 2,
    T: 11,
    H: 6,
    HD: 8,
    causal: 1,
    dropout: 0.2,
    groupSize: 3,
    padding: 4,
  },
  { name: 'one head of keys for all', B: 1, T: 67, H: 4, HD: 8, causal: 1, dropout: 0, groupSize: 4 },
  { name: 'widest head', B: 1, T: 29, H: 1, HD: 128, causal: 1, dropout: 0 },
];

export function attentionParamsOf(shape: AttentionShape): Record<string, number> {
  const { B, T, H, HD, causal, dropout, groupSize = 1, padding = 0 } = shape;
  const columns = H * HD;
  const kv = columns / groupSize;
  const offsets = { stride: columns + 2 * kv + padding, qOffset: 0, kOffset: columns, vOffset: columns + kv };
  return { B, T, H, HD, groupSize, ...offsets, causal, dropout, maskKey0: 7, maskKey1: 23 };
}

function attentionCase(kernel: Kernel, shape: AttentionShape): KernelCase {
  const { B, T, H, HD } = shape;
  const params = attentionParamsOf(shape);
  const qkv = B * T * params.stride;
  const rows = B * H * T;
  const size: Readonly<Record<string, number>> = {
    qkv,
    dqkv: qkv,
    control: CONTROL_ELEMENTS,
    out: rows * HD,
    dout: rows * HD,
    lse: rows,
    delta: rows,
  };
  const operandElements = kernel.operands.map(({ name }) => size[name]);
  // Backward gets an lse and an out that belong to its qkv: from the same operands, run forward.
  const forward = new Map<string, Float32Array>();
  return {
    kernel,
    name: `${shape.name}: ${B}x${T}, ${H} heads of ${HD}`,
    params,
    operandElements,
    fill: (index, view) => {
      const { name } = kernel.operands[index];
      if (name === 'control') setStep(view, 11);
      if (kernel === attention) return;
      if (name === 'qkv') {
        const inputs = caseViews(attentionCase(attention, shape), 1);
        inputs[0].set(view);
        attention.run(inputs, params);
        forward.set('out', inputs[2] as Float32Array);
        forward.set('lse', inputs[3] as Float32Array);
      } else if (forward.has(name)) {
        view.set(forward.get(name) as Float32Array);
      }
    },
    tolerance: 1e-5,
  };
}

const notFinite: KernelCase = {
  ...attentionCase(attention, { name: 'NaN in one query', B: 1, T: 5, H: 1, HD: 8, causal: 0, dropout: 0 }),
  fill: (index, view) => {
    if (index === 0) view[0] = Number.NaN;
  },
};

/** What all gradients at once are taken for, and a little more. */
function isOfShortSequences({ T, HD, groupSize = 1 }: AttentionShape): boolean {
  return T <= 36 && HD <= 16 && groupSize === 1;
}

export const cases: KernelCase[] = [
  ...[attention, attentionGradQ, attentionGradKV].flatMap((kernel) =>
    attentionShapes.map((shape) => attentionCase(kernel, shape)),
  ),
  ...attentionShapes.filter(isOfShortSequences).map((shape) => attentionCase(attentionGrad, shape)),
  notFinite,
];
