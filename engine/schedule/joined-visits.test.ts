import fc from 'fast-check';
import { expect, test } from 'vitest';
import { StudioError } from '../errors.ts';
import { interleave, randomChoice } from './fixtures/interleaving.ts';
import { anyRun, compileFirst, compileRanks, smallModel } from './fixtures/small-runs.ts';
import { withJoinedVisits } from './joined-visits.ts';
import { builtInProfiles } from './profile.ts';
import { dispatches, type Step } from './schedule.ts';

const { h200, software } = builtInProfiles;
const model = { ...smallModel, nlayers: 8 };

/** Dispatches of each submit, and the visits that it is made of as they were. */
function submits(before: readonly Step[], after: readonly Step[]) {
  const made = new Map<number, { count: number; visits: Set<number> }>();
  after.forEach(({ visit, lane, action }, i) => {
    if (lane !== 'compute') return;
    const submit = made.get(visit) ?? { count: 0, visits: new Set() };
    made.set(visit, submit);
    submit.count += dispatches(action).length;
    submit.visits.add(before[i].visit);
  });
  return [...made.values()];
}

test('a rank alone submits many visits at once, twice as much each time until it is enough', () => {
  const { steps } = compileFirst({ config: { devices: 1, model }, profile: software }).steps[0].schedule;
  const made = submits(steps, withJoinedVisits(steps, h200));
  const visits = made.reduce((sum, submit) => sum + submit.visits.size, 0);
  expect(made.length).toBeLessThan(visits / 3);
  made.forEach((submit, i) => {
    if (submit.visits.size > 1) expect(submit.count).toBeLessThanOrEqual(Math.min(64, 2 * made[i - 1].count));
  });
});

test('what takes long, and what runs in software, stays apart', () => {
  const { steps } = compileFirst({ config: { devices: 1, model }, profile: software }).steps[0].schedule;
  expect(withJoinedVisits(steps, software)).toEqual(steps);
  const slow = { seconds: 4e-3, flopsPerSecond: 1e12, bytesPerSecond: 1e12 };
  const kernels = Object.fromEntries(Object.keys(h200.kernels).map((name) => [name, slow])) as typeof h200.kernels;
  expect(withJoinedVisits(steps, { ...h200, kernels })).toEqual(steps);
});

test('no lane waits longer: a visit that waits begins a submit, one that is waited for ends it, and every order still ends', () => {
  fc.assert(
    fc.property(anyRun, fc.nat(), (input, seed) => {
      const runs = compileOrNull({ ...input, profile: { ...input.profile, ...h200, name: 'a GPU' } });
      fc.pre(runs !== null);
      const { steps } = runs![0].steps[0].schedule;
      const awaited = new Set(steps.flatMap(({ waits }) => waits));
      const compute = steps.filter(({ lane }) => lane === 'compute');
      const unjoined = compileRanks({ ...input, profile: { ...h200, software: true, name: 'software' } })[0];
      const visitBefore = unjoined.steps[0].schedule.steps.map(({ visit }) => visit);
      compute.slice(1).forEach((step, i) => {
        const last = compute[i];
        if (step.visit !== last.visit || visitBefore[step.id] === visitBefore[last.id]) return;
        expect(step.waits).toEqual([]);
        expect(awaited.has(last.id)).toBe(false);
      });
      interleave(
        runs!.map((run) => run.steps[0].schedule),
        randomChoice(seed),
        2,
      );
    }),
    { numRuns: 20, seed: 1 },
  );
});

function compileOrNull(input: Parameters<typeof compileRanks>[0]) {
  try {
    return compileRanks(input);
  } catch (error) {
    if (error instanceof StudioError) return null;
    throw error;
  }
}
