import { meanInTree } from '../comm/reduce-tree.ts';
import { CONTROL } from '../ops/control.ts';
import type { StepOutcome } from '../schedule/rank-engine.ts';

/** The outcome of a step: this rank's control tensor, and what each rank said at the report: [loss, told to stop]. */
export function outcomeOf(control: Float32Array, said: readonly (readonly number[])[]): StepOutcome {
  return {
    loss: control[CONTROL.loss],
    lossMean: meanInTree(said.map(([loss]) => loss)),
    gradNorm: control[CONTROL.gradNorm],
    halted: control[CONTROL.halted] !== 0,
    stopRequested: said.some(([, stop]) => stop === 1),
  };
}
