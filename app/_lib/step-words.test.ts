import { expect, it } from 'vitest';
import { afterSteps, stepName, stepRange, stepsDone } from './step-words.ts';

it('numbers steps from 0, and counts those that are done', () => {
  expect([stepName(0), stepName(1234)]).toEqual(['step 0', 'step 1,234']);
  expect([stepsDone(0, 1), stepsDone(7, 1000)]).toEqual(['0 of 1 step', '7 of 1,000 steps']);
  expect([afterSteps(1), afterSteps(10)]).toEqual(['after 1 step', 'after 10 steps']);
  expect([stepRange(3, 3), stepRange(1, 9)]).toEqual(['step 3 alone', 'steps 1 to 9']);
});
