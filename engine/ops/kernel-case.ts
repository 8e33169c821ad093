import { packHalves } from './half/half.ts';
import type { Kernel, Params, View } from './kernel.ts';

/** One shape of one kernel, on which a device's result is compared with `run`. */
export interface KernelCase {
  readonly kernel: Kernel;
  /** What is particular about this shape. */
  readonly name: string;
  readonly params: Params;
  /** Elements of each operand, in the kernel's order. Halves are filled as numbers, then packed. */
  readonly operandElements: readonly number[];
  /** Changes an operand before the run; `random` is uniform on [0, 1). Until then floats are uniform on [−1, 1), u32 zero. */
  readonly fill?: (operandIndex: number, view: View, random: () => number) => void;
  /** Largest |device − run| allowed, relative to max(1, |run|). 0: equal to the bit. */
  readonly tolerance: number;
}

/** Uniform numbers on [0, 1) from 32-bit integers (mulberry32): the same on every machine. */
export function seededRandom(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t = (t + Math.imul(t ^ (t >>> 7), t | 61)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Fresh operands of a case, filled from `seed`. */
export function caseViews(testCase: KernelCase, seed: number): View[] {
  const random = seededRandom(seed);
  return testCase.kernel.operands.map((operand, index) => {
    const elements = testCase.operandElements[index];
    const view: View = operand.dtype === 'u32' ? new Uint32Array(elements) : new Float32Array(elements);
    if (operand.dtype !== 'u32') for (let i = 0; i < view.length; i++) view[i] = random() * 2 - 1;
    testCase.fill?.(index, view, random);
    return operand.dtype === 'f16' ? packHalves(view as Float32Array) : view;
  });
}
