import { meanInTree } from '../comm/reduce-tree.ts';
import { CONTROL } from '../ops/control.ts';
import type { StepFeed, StepOutcome } from '../schedule/rank-engine.ts';

/** What a rank says at the report: its loss, and what it was told to do as the sum of 1 (stop), 2 (save) and 4 (trace). */
export function reportOf(control: Float32Array, feed: StepFeed): [number, number] {
  const told = (feed.stopRequested() ? 1 : 0) + (feed.saveRequested?.() ? 2 : 0) + (feed.traceRequested?.() ? 4 : 0);
  return [control[CONTROL.loss], told];
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
    traceRequested: said.some(([, told]) => (told & 4) !== 0),
  };
}
