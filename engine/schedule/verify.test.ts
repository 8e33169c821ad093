import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { StudioError } from '../errors.ts';
import { add } from '../ops/add/add.ts';
import { fill } from '../ops/fill/fill.ts';
import { anyRun, compileFirst, compileRanks } from './fixtures/small-runs.ts';
import { type Action, type Dispatch, type Lane, type Schedule, type Step, touches } from './schedule.ts';
import { collectiveOrder, verify } from './verify.ts';

/** The verifier refuses a broken schedule of each kind: real schedules, broken in one place. */

const real = compileFirst({ config: { strategy: { kind: 'fsdp' } } }).steps[0].schedule;

/** The same schedule with one step changed. */
function withStep(schedule: Schedule, id: number, change: (step: Step) => Partial<Step>): Schedule {
  return { ...schedule, steps: schedule.steps.map((step) => (step.id === id ? { ...step, ...change(step) } : step)) };
}

const without = (list: readonly number[], id: number) => list.filter((x) => x !== id);

/** A passing tensor that several steps touch, by its first and last touch. */
function longLived(): { tensor: number; first: number; last: number } {
  const lives = new Map<number, { tensor: number; first: number; last: number }>();
  for (const step of real.steps)
    for (const { range } of touches(step.action)) {
      const tensor = range.tensor;
      if (!real.tensors[tensor].state)
        lives.set(tensor, { tensor, first: lives.get(tensor)?.first ?? step.id, last: step.id });
    }
  return [...lives.values()].find(({ first, last }) => last - first > 20)!;
}

/** Where two ranks first differ in their collectives; null where all agree. In a run each compares a hash of its own. */
function difference(schedules: readonly Schedule[]): string | null {
  const [first, ...others] = schedules.map((schedule) => collectiveOrder(schedule).split('\n'));
  for (const [i, order] of others.entries()) {
    const line = Array.from({ length: Math.max(first.length, order.length) }).findIndex(
      (_, n) => first[n] !== order[n],
    );
    if (line >= 0)
      return `rank 0 and rank ${i + 1}, ${line}: "${first[line] ?? 'none'}" and "${order[line] ?? 'none'}"`;
  }
  return null;
}

function expectRefused(schedule: Schedule, message: RegExp): void {
  try {
    verify(schedule);
  } catch (error) {
    expect(error).toBeInstanceOf(StudioError);
    expect((error as StudioError).code).toBe('invalid-schedule');
    expect((error as StudioError).message).toMatch(message);
    return;
  }
  expect.fail('the schedule was accepted');
}

describe('lives', () => {
  const { tensor, first, last } = longLived();
  const name = real.tensors[tensor].name.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');

  it('accepts what the passes make', () => {
    verify(real);
    fc.assert(
      fc.property(anyRun, (input) => {
        try {
          for (const { steps } of compileRanks(input)) for (const { schedule } of steps) verify(schedule);
        } catch (error) {
          if ((error as StudioError).code !== 'out-of-memory') throw error;
        }
      }),
      { numRuns: 20, seed: 1 },
    );
  });

  it('refuses a use before definition', () => {
    const broken = withStep(real, first, (s) => ({ creates: without(s.creates, tensor) }));
    expectRefused(broken, new RegExp(`step ${first} .*uses ${name} before any step creates it`));
  });

  it('refuses a use after the free', () => {
    const early = withStep(real, last, (s) => ({ frees: without(s.frees, tensor) }));
    const broken = withStep(early, last - 1, (s) => ({ frees: [...s.frees, tensor] }));
    expectRefused(broken, new RegExp(`step ${last} .*uses ${name} after it was freed`));
  });

  it('refuses a second creation, alive or freed', () => {
    const again = (id: number) => withStep(real, id, (s) => ({ creates: [...s.creates, tensor] }));
    expectRefused(again(last), new RegExp(`step ${last} .*creates ${name}, which exists already`));
    expectRefused(again(real.steps.length - 1), new RegExp(`creates ${name}, which exists already`));
  });

  it('refuses what is never freed, freed twice, or freed and kept', () => {
    const broken = withStep(real, last, (s) => ({ frees: without(s.frees, tensor) }));
    expectRefused(broken, new RegExp(`${name} is created and never freed`));
    const twice = withStep(real, real.steps.length - 1, (s) => ({ frees: [...s.frees, tensor] }));
    expectRefused(twice, new RegExp(`frees ${name}, which is not there`));
    const state = real.tensors.find((t) => t.state)!.id;
    expectRefused(
      withStep(real, 5, (s) => ({ frees: [...s.frees, state] })),
      /which is kept from step to step/,
    );
  });

  it('refuses a tensor that is read before anything wrote it', () => {
    const a = { tensor: 0, offsetBytes: 0, bytes: 16 };
    const copy: Dispatch = { kernel: add, operands: [{ ...a, tensor: 1 }, a], params: { n: 4 }, tiled: false };
    const steps = [handMade(0, 'compute', copy, { reads: [0, 1], writes: [1], creates: [0, 1], frees: [0, 1] })];
    expectRefused(handMadeSchedule(steps), /reads t0 before anything wrote it/);
  });

  it('refuses a range past the end, and a touch that a step does not declare', () => {
    const step = real.steps.find((s) => s.action.type === 'dispatch')!;
    const action = step.action as Extract<Step['action'], { type: 'dispatch' }>;
    const [operand, ...rest] = action.dispatch.operands;
    const longer = (by: Partial<typeof operand>) =>
      withStep(real, step.id, () => ({
        action: { ...action, dispatch: { ...action.dispatch, operands: [{ ...operand, ...by }, ...rest] } },
      }));
    const bytes = real.tensors[operand.tensor].bytes;
    expectRefused(longer({ bytes: bytes + 4 }), /reaches past the end of/);
    expectRefused(longer({ offsetBytes: bytes }), /reaches past the end of/);
    expectRefused(longer({ offsetBytes: -4 }), /reaches past the end of/);
    const writer = real.steps.find((s) => s.writes.length > 0)!;
    expectRefused(
      withStep(real, writer.id, () => ({ writes: [] })),
      /touches .* and does not say so/,
    );
  });
});

describe('waits', () => {
  it('refuses a wait for a later step, for itself, and for none', () => {
    for (const wait of [101, 100])
      expectRefused(
        withStep(real, 100, () => ({ waits: [wait] })),
        /step 100 .* waits for step 10\d, which comes later/,
      );
    expectRefused(
      withStep(real, 100, () => ({ waits: [real.steps.length] })),
      /which does not exist/,
    );
    expectRefused(
      withStep(real, 100, () => ({ waits: [-1] })),
      /which does not exist/,
    );
  });

  it('refuses a visit that waits for what waits for the visit', () => {
    // Two visits, the second waiting for a gather that was listed between them, become one visit.
    const waiting = real.steps.find(
      (s) => s.lane === 'compute' && s.waits.some((w) => w > 0 && visitBefore(s) !== null && w > visitBefore(s)!.first),
    )!;
    const { visit } = visitBefore(waiting)!;
    const merged = {
      ...real,
      steps: real.steps.map((s) => (s.visit === waiting.visit ? { ...s, visit } : s)),
    };
    expectRefused(merged, /waits inside its own visit for step \d+ .*a cycle/);
  });

  it('refuses each missing wait that a tensor needs', () => {
    let removed = 0;
    for (const step of real.steps)
      for (const wait of step.waits) {
        if (!conflict(step, real.steps[wait])) continue;
        removed++;
        expectRefused(
          withStep(real, step.id, (s) => ({ waits: without(s.waits, wait) })),
          /does not wait for step/,
        );
      }
    expect(removed).toBeGreaterThan(5);
  });

  const t = { tensor: 0, offsetBytes: 0, bytes: 16 };
  const write: Dispatch = { kernel: fill, operands: [t], params: { n: 4, offset: 0, value: 0 }, tiled: false };
  const read: Dispatch = { kernel: add, operands: [{ ...t, tensor: 1 }, t], params: { n: 4 }, tiled: false };
  const writes = (id: number, lane: Lane, more: Partial<Step> = {}) =>
    handMade(id, lane, write, { writes: [0], ...more });
  const reads = (id: number, lane: Lane, more: Partial<Step> = {}) =>
    handMade(id, lane, read, { reads: [0, 1], writes: [1], ...more });

  it.each([
    [
      'a read after a write',
      [writes(0, 'comm'), reads(1, 'compute')],
      /step 1 .* does not wait for step 0 .* writes t0/,
    ],
    [
      'a write after a read',
      [writes(0, 'comm'), reads(1, 'compute', { waits: [0] }), writes(2, 'comm')],
      /step 2 .* does not wait for step 1 .* reads t0/,
    ],
    [
      'a write after a write',
      [writes(0, 'comm'), writes(1, 'host')],
      /step 1 .* does not wait for step 0 .* writes t0/,
    ],
  ])('refuses %s without a wait, and accepts it with one', (_, steps, message) => {
    const whole = handMadeSchedule(withLives(steps));
    expectRefused(whole, message);
    const last = steps.length - 1;
    verify(withStep(whole, last, () => ({ waits: [last - 1] })));
    const byAnother = handMadeSchedule(
      withLives([
        ...steps.slice(0, last),
        handMadeFree(last, steps[last - 1].lane),
        { ...steps[last], id: last + 1, visit: last + 1 },
      ]),
    );
    // A later step of the same lane is enough: lanes run in order.
    verify(withStep(byAnother, last + 1, () => ({ waits: [last] })));
  });
});

describe('readers', () => {
  it('refuses a publication that others collect than those whom its owner waits for', () => {
    const strategy = { kind: 'fsdp', shardingStrategy: 'HYBRID_SHARD', deviceMesh: [2, 2] };
    const [{ steps }] = compileRanks({ config: { devices: 4, strategy } });
    const { schedule } = steps[0];
    verify(schedule);
    const ofRows = schedule.regions.findIndex((r) => r.groups?.some((ranks) => ranks.join() === '0,1'));
    const { id } = schedule.steps.find(({ action }) => action.type === 'collect' && action.peers.join() === '2')!;
    const broken = withStep(schedule, id, ({ action }) => ({ action: { ...action, region: ofRows } as typeof action }));
    expectRefused(broken, /collects .* of ranks 2, and its readers are ranks 1/);
  });

  describe('of what lies on the host', () => {
    const { schedule } = compileRanks({ config: { devices: 2, strategy: 'fsdp_cpu_offload' } })[0].steps[0];
    const collects = schedule.steps.filter(({ action }) => action.type === 'collect' && action.own);

    it('refuses a collection after a store to the same region', () => {
      const store = schedule.steps.find(({ action }) => action.type === 'store')!;
      const { parts } = store.action as Extract<Action, { type: 'store' }>;
      const { region } = schedule.tensors[parts[0].host.tensor];
      const { id, action } = collects.find((s) => s.id > store.id)!;
      const broken = withStep(schedule, id, () => ({ action: { ...action, region } as Action }));
      expectRefused(broken, new RegExp(`step ${id} .* collects shard .* after a store to it`));
    });

    it('refuses more collections, or fewer, than the owners wait for', () => {
      const { id, action } = collects[0];
      const broken = withStep(schedule, id, () => ({ action: { ...action, extraReads: 1 } as Action }));
      expectRefused(broken, /is collected 2 times, and its owners wait for 1/);
    });
  });
});

describe('ranks', () => {
  const schedules = compileRanks({ config: { devices: 3, strategy: { kind: 'fsdp' } } }).map(
    (run) => run.steps[0].schedule,
  );
  const publications = schedules[1].steps.filter((s) => s.action.type === 'publish');
  const broken = (change: (schedule: Schedule) => Schedule) => [schedules[0], change(schedules[1]), schedules[2]];

  it('agree, whatever their shards', () => {
    expect(difference(schedules)).toBeNull();
    fc.assert(
      fc.property(anyRun, (input) => {
        try {
          expect(difference(compileRanks(input).map((run) => run.steps[0].schedule))).toBeNull();
        } catch (error) {
          if ((error as StudioError).code !== 'out-of-memory') throw error;
        }
      }),
      { numRuns: 20, seed: 1 },
    );
  });

  it('differ when two collectives change places, one is left out, or sizes differ', () => {
    const [first, second] = publications;
    const swapped = broken((s) => ({
      ...s,
      steps: s.steps.map((step) => (step === first ? second : step === second ? first : step)),
    }));
    expect(difference(swapped)).toMatch(/rank 0 and rank 1, 1: "publish .*" and "publish .*"/);
    const missing = broken((s) => ({ ...s, steps: s.steps.filter((step) => step !== first) }));
    expect(difference(missing)).toMatch(/rank 0 and rank 1, 1: /);
    const longer = broken((s) => ({ ...s, regions: s.regions.map((r) => ({ ...r, bytes: r.bytes + 16 })) }));
    expect(difference(longer)).toMatch(/rank 0 and rank 1, 1: /);
    const readOften = broken((s) => ({
      ...s,
      regions: s.regions.map((r) => ({ ...r, readsPerPublication: r.readsPerPublication + 1 })),
    }));
    expect(difference(readOften)).toMatch(/rank 0 and rank 1, 1: /);
    const last = broken((s) => ({ ...s, steps: s.steps.slice(0, -1) }));
    expect(difference(last)).toMatch(/"report .*" and "none"/);
    const world = broken((s) => ({ ...s, world: 4 }));
    expect(difference(world)).toMatch(/"world 3" and "world 4"/);
  });

  it('have the same order under every step, and another under another strategy', () => {
    const orders = new Set(
      [
        { kind: 'fsdp' },
        { kind: 'fsdp', backwardPrefetch: null },
        { kind: 'fsdp', backwardPrefetch: 'BACKWARD_POST' },
        { kind: 'fsdp', autoWrapPolicy: ['Linear'] },
        { kind: 'ddp' },
      ].map((strategy) => collectiveOrder(compileFirst({ config: { strategy } }).steps[0].schedule)),
    );
    expect(orders.size).toBe(5);
  });
});

/** The visit of the compute lane before the one of `step`, and its first step. */
function visitBefore(step: Step): { visit: number; first: number } | null {
  const before = real.steps.filter((s) => s.lane === 'compute' && s.id < step.id && s.visit !== step.visit);
  const last = before[before.length - 1];
  return last ? { visit: last.visit, first: before.find((s) => s.visit === last.visit)!.id } : null;
}

function conflict(a: Step, b: Step): boolean {
  return touches(a.action).some((x) =>
    touches(b.action).some((y) => x.range.tensor === y.range.tensor && (x.access !== 'read' || y.access !== 'read')),
  );
}

function handMade(id: number, lane: Lane, dispatch: Dispatch, more: Partial<Step> = {}): Step {
  return {
    id,
    kind: 'compute',
    lane,
    phase: 'forward',
    label: dispatch.kernel.name,
    unit: 'root',
    visit: id,
    action: { type: 'dispatch', dispatch },
    reads: [],
    writes: [],
    creates: [],
    frees: [],
    waits: [],
    ...more,
  };
}

function handMadeFree(id: number, lane: Lane): Step {
  const nothing: Dispatch = { kernel: fill, operands: [], params: {}, tiled: false };
  return { ...handMade(id, lane, nothing), kind: 'free', label: 'free', action: { type: 'free' } };
}

/** t0 passes, t1 is kept. */
function handMadeSchedule(steps: readonly Step[]): Schedule {
  const tensor = (id: number, state: boolean) =>
    ({ id, name: `t${id}`, bytes: 16, category: 'workspace', space: 'device', state }) as const;
  const state = !steps.some((s) => s.creates.includes(1));
  return { rank: 0, world: 1, tensors: [tensor(0, false), tensor(1, state)], steps, regions: [] };
}

/** t0 lives from the first of the steps to the last. */
function withLives(steps: readonly Step[]): Step[] {
  const last = steps.length - 1;
  return steps.map((s, i) => ({ ...s, creates: i === 0 ? [0] : [], frees: i === last ? [0] : [] }));
}
