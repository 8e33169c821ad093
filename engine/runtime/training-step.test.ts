import { expect, test } from 'vitest';
import type { ExecutableStep } from '../schedule/compile.ts';
import type { StepFeed } from '../schedule/rank-engine.ts';
import type { Step } from '../schedule/schedule.ts';
import type { UnderWay } from './copies.ts';
import { type LaneEngine, TrainingStep } from './training-step.ts';

/** When a copy may begin and a step is done, with copies that end when the test says so. */

/** Lets everything go on that waits for nothing of the test's. */
const settled = () => new Promise((resolve) => setTimeout(resolve, 5));

/** Steps in the host's lane, but for dispatches; `begun` says which have begun. */
function laneOf(actions: readonly { readonly type: string; readonly waits?: readonly number[] }[]) {
  const begun: number[] = [];
  const submit = new Map<number, () => void>();
  const end = new Map<number, () => void>();
  const range = { tensor: 0, offsetBytes: 0, bytes: 64 };
  const steps = [...actions, { type: 'report', waits: [] }].map(({ type, waits = [] }, id) => ({
    ...{ id, visit: id, waits, lane: type === 'dispatch' ? 'compute' : 'host' },
    action: { type, parts: [{ host: range, device: range }] },
  })) as unknown as Step[];
  const begin = async (_: ExecutableStep, { id }: Step): Promise<UnderWay> => {
    begun.push(id);
    const submitted = new Promise<void>((resolve) => submit.set(id, resolve));
    const done = new Promise<void>((resolve) => end.set(id, resolve));
    return { submitted, done };
  };
  const engine = {
    copies: { fetch: begin, store: begin, keep: begin },
    compiled: () => ({ schedule: { steps } }),
    encoder: () => undefined,
    encodeDispatches: (_: unknown, __: StepFeed, visit: readonly Step[]) => void begun.push(...visit.map((s) => s.id)),
    submit: () => undefined,
    report: () => async () => 'the outcome',
  } as unknown as LaneEngine;
  const training = new TrainingStep(engine, { step: 0 } as StepFeed, 60_000);
  const { outcome } = training.run(Promise.resolve(), Promise.resolve());
  return { begun, submit, end, outcome };
}

test.each(['store', 'keep'])('a fetch of what a %s brings to the host waits for its end', async (type) => {
  const { begun, submit, end, outcome } = laneOf([{ type }, { type: 'fetch' }]);
  await settled();
  submit.get(0)!();
  await settled();
  expect(begun).toEqual([0]);
  end.get(0)!();
  await settled();
  expect(begun).toEqual([0, 1]);
  submit.get(1)!();
  end.get(1)!();
  expect(await outcome).toBe('the outcome');
});

test('what takes the place on the device of what is stored waits for the submit of the copy, not for its end', async () => {
  const { begun, submit, end, outcome } = laneOf([{ type: 'store' }, { type: 'dispatch', waits: [0] }]);
  await settled();
  expect(begun).toEqual([0]);
  submit.get(0)!();
  await settled();
  expect(begun).toEqual([0, 1]);
  end.get(0)!();
  expect(await outcome).toBe('the outcome');
});
