import { expect, it } from 'vitest';
import type { CompiledRun } from '../schedule/compile.ts';
import { smallModel } from '../schedule/fixtures/small-runs.ts';
import { liveBytes, UNIFORM_SLOT_BYTES } from '../schedule/memory.ts';
import { expectAsPlanned, expectSameBits } from './fixtures/laws.ts';
import { interpreterPlace, openRanks } from './fixtures/reference-run.ts';

/** optimizer.foreach: one update for a unit's shard, or one for each parameter. The dispatches differ, and nothing else. */

const shape = { batch: 2, tokens: 3 };
const batch = (step: number, rank: number) => {
  const input = Array.from({ length: 6 }, (_, i) => (7 * step + 5 * rank + 3 * i) % 11);
  return { input, target: input };
};

async function trained(config: object, optimizer: object) {
  const ranks = await openRanks(interpreterPlace, {
    config: { model: smallModel, ...config, optimizer },
    shape,
    batch,
  });
  try {
    const outcomes = await ranks.train(3);
    expectAsPlanned(ranks, [1, 2]);
    const whole = { outcomes, parameters: await ranks.parameters() };
    return { run: ranks.runs[0], memory: ranks.engines[0].memory(), whole };
  } finally {
    await ranks.close();
  }
}

const updates = (run: CompiledRun, kernel: string) =>
  run.steps[0].schedule.steps.filter((s) => s.action.type === 'dispatch' && s.action.dispatch.kernel.name === kernel);

it.each([
  ['DDP', 'adam', { devices: 2, strategy: 'ddp' }, { kind: 'adam' }],
  ['FULL_SHARD', 'adam', { devices: 3, strategy: 'fsdp' }, { kind: 'adamw', weightDecay: 0.1 }],
  [
    'SHARD_GRAD_OP',
    'sgd',
    { devices: 2, strategy: { kind: 'fsdp', shardingStrategy: 'SHARD_GRAD_OP' } },
    { kind: 'sgd', momentum: 0.9 },
  ],
  ['offload', 'adam', { devices: 2, strategy: 'fsdp_cpu_offload' }, { kind: 'adam' }],
  ['a group with its own rate', 'sgd-plain', { devices: 2 }, { kind: 'sgd', groups: [{ match: '*bias', lr: 0.3 }] }],
  [
    'a group with its own decay, at the same rate',
    'adam',
    { devices: 1 },
    { kind: 'adamw', weightDecay: 0.5, groups: [{ match: '*bias', weightDecay: 0 }] },
  ],
])('%s: the same bits and the same memory on and off', async (_, kernel, config, optimizer) => {
  const on = await trained(config, { ...optimizer, foreach: true });
  const off = await trained(config, { ...optimizer, foreach: false });
  expectSameBits(off.whole, on.whole, 'foreach off');
  const [few, many] = [on, off].map(({ run }) => updates(run, kernel).length);
  const { groups } = on.run.steps[0];
  const parameters = groups.reduce((sum, g) => sum + g.layout.segments.length, 0);
  expect(many).toBe(parameters);
  if ('groups' in optimizer) expect(few).toBeLessThan(many);
  else expect(few).toBe(groups.length);

  const peaks = [on, off].map(({ run }) => liveBytes(run.steps[0].schedule));
  for (const category of Object.keys(peaks[0][0]) as (keyof (typeof peaks)[0][0])[])
    expect(Math.max(...peaks[1].map((b) => b[category])), category).toBe(Math.max(...peaks[0].map((b) => b[category])));
  expect([off.memory.liveBytes, off.memory.byCategory]).toEqual([on.memory.liveBytes, on.memory.byCategory]);
  // What a rank holds more is the parameters of the kernels: a slot for each dispatch.
  expect(off.memory.peakBytes - on.memory.peakBytes).toBe((many - few) * UNIFORM_SLOT_BYTES);
});
