import { describe, expect, it } from 'vitest';
import { openInProcessMailboxes } from '../comm/in-process.ts';
import { parseConfig } from '../config.ts';
import { Interpreter } from '../interpret/interpreter.ts';
import { buildModel } from '../model/build-model.ts';
import { compileRun } from './compile.ts';
import { liveBytes } from './memory.ts';
import { builtInProfiles } from './profile.ts';

/** limitAllGathers off under a memory budget: the gather lane gets the slots that fit. */

const profile = { ...builtInProfiles.interpreter, stagingSlotBytes: 2 ** 12, offsetAlignmentBytes: 16 };
const shape = { batch: 1, tokens: 4 };
const MiB = 2 ** 20;

function compiled(strategy: object, memoryBudgetMiB: number | null = null, rank = 0) {
  const model = { kind: 'demo-transformer', vocabSize: 32, ninp: 64, nhead: 2, nhid: 128, nlayers: 4 };
  const config = parseConfig({ model, devices: 2, strategy: { kind: 'fsdp', ...strategy }, memoryBudgetMiB });
  return compileRun({ config, model: buildModel(config.model, null), shapes: [shape], rank, profile });
}

const most = (run: ReturnType<typeof compiled>) =>
  Math.max(...liveBytes(run.steps[0].schedule).map(({ gathered }) => gathered));

describe.each([{ shardingStrategy: 'FULL_SHARD' }, { shardingStrategy: 'FULL_SHARD', backwardPrefetch: null }])(
  '%o',
  (strategy) => {
    const limited = compiled({ ...strategy, limitAllGathers: true });
    const free = compiled({ ...strategy, limitAllGathers: false });

    it('with room for all, or without a budget, no gather waits', () => {
      expect(free.slotWaits).toBe(0);
      expect(limited.slotWaits).toBe(0);
      const roomy = compiled({ ...strategy, limitAllGathers: false }, free.memory.reservedBytes / MiB);
      expect([roomy.slotWaits, roomy.memory.reservedBytes]).toEqual([0, free.memory.reservedBytes]);
    });

    it('a budget between both gets the slots that fit: more than the limiter’s, fewer than all', () => {
      const between = (limited.memory.reservedBytes + 3 * free.memory.reservedBytes) / 4;
      const run = compiled({ ...strategy, limitAllGathers: false }, between / MiB);
      expect(run.memory.reservedBytes).toBeLessThanOrEqual(between);
      expect(run.slotWaits).toBeGreaterThan(0);
      expect(most(run)).toBeGreaterThan(most(limited));
      expect(most(run)).toBeLessThan(most(free));
      // The tighter the budget, the more gathers wait.
      const tight = compiled({ ...strategy, limitAllGathers: false }, limited.memory.reservedBytes / MiB);
      expect(tight.slotWaits).toBeGreaterThan(run.slotWaits);
    });

    it('is the same plan for every rank', () => {
      const budget = (limited.memory.reservedBytes + free.memory.reservedBytes) / 2 / MiB;
      const [a, b] = [0, 1].map((rank) => compiled({ ...strategy, limitAllGathers: false }, budget, rank));
      expect(a.slotWaits).toBe(b.slotWaits);
      expect(a.steps[0].schedule.steps.map((s) => s.label)).toEqual(b.steps[0].schedule.steps.map((s) => s.label));
    });
  },
);

it('each gather that waits for a slot counts as one allocation retry, step after step', async () => {
  const free = compiled({ limitAllGathers: false });
  const limited = compiled({});
  const budget = (limited.memory.reservedBytes + free.memory.reservedBytes) / 2 / MiB;
  const runs = [0, 1].map((rank) => compiled({ limitAllGathers: false }, budget, rank));
  const mailboxes = openInProcessMailboxes(2, runs[0].regions);
  const engines = runs.map((run, rank) => new Interpreter(run, mailboxes[rank]));
  const tokens = [Uint32Array.of(1, 2, 3, 4)];
  for (let step = 0; step < 3; step++) {
    const feed = { step, shapeIndex: 0, inputs: tokens, targets: tokens, lrFactor: 1, stopRequested: () => false };
    await Promise.all(engines.map((engine) => engine.start({ ...feed, saveRequested: () => false }).outcome));
    expect(engines.map((engine) => engine.memory().allocRetries)).toEqual(
      [1, 1].map(() => (step + 1) * runs[0].slotWaits),
    );
  }
  await Promise.all(engines.map((engine) => engine.close()));
});
