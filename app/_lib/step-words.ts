import { formatCount } from './format.ts';

/*
 * How the pages speak of steps, in one place. A step has a number, from 0 on, as in reports, logs, CSV files and traces: the
 * first step of training is step 0. How far something is, is a count: after step 0 one step is done.
 */

/** A step by its number: step 0, step 1,234. */
export function stepName(step: number): string {
  return `step ${formatCount(step)}`;
}

/** How far a run is: 7 of 10 steps. */
export function stepsDone(done: number, of: number): string {
  return `${formatCount(done)} of ${formatCount(of)} step${of === 1 ? '' : 's'}`;
}

/** When something was made: after 10 steps. */
export function afterSteps(count: number): string {
  return `after ${formatCount(count)} step${count === 1 ? '' : 's'}`;
}

/** So many steps by number: step 3 alone, steps 1 to 9. */
export function stepRange(first: number, last: number): string {
  return first === last ? `${stepName(first)} alone` : `steps ${formatCount(first)} to ${formatCount(last)}`;
}
