import { meanInTree } from '../comm/reduce-tree.ts';
import { CONTROL } from '../ops/control.ts';
import type { StepFeed, StepOutcome } from '../schedule/rank-engine.ts';

/** What a rank says at the report: its loss, and what it was told to do as the sum of 1 (stop) and 2 (save). */
export function reportOf(control: Float32Array, { stopRequested, saveRequested }: StepFeed): [number, number] {
  return [control[CONTROL.loss], (stopRequested() ? 1 : 0) + (saveRequested?.() ? 2 : 0)];
}

/** The outcome of a step: this rank's control tensor, and what each rank said at the report. */
export function outcomeOf(control: Float32Array, said: readonly (readonly number[])[]): StepOutcome {
  return {
    loss: control[CONTROL.loss],
    lossMean: meanInTree(said.map(([loss]) => loss)),
    gradNorm: control[CONTROL.gradNorm],
    halted: control[CONTROL.halted] !== 0,
    stopRequested: said.some(([, told]) => (told & 1) !== 0),
    saveRequested: said.some(([, told]) => (told & 2) !== 0),
  };
}
