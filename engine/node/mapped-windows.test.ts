import { afterAll, beforeAll, expect, it } from 'vitest';
import { smallModel } from '../schedule/fixtures/small-runs.ts';
import { fillRank } from '../trainer/state.ts';
import { expectSameBits } from './fixtures/laws.ts';
import { openRanks, softwareGpuPlace, type TestRanks } from './fixtures/reference-run.ts';

/** What the host keeps of a group in several mapped buffers, one for each window of its updates. */

let gpu: Awaited<ReturnType<typeof softwareGpuPlace>>;
beforeAll(async () => {
  gpu = await softwareGpuPlace();
});
afterAll(() => gpu?.device.close());

function ranksOf(devices: number, strategy: string): Promise<TestRanks> {
  // Windows of 40 elements, and collects of more than two windows.
  const place = { ...gpu, profile: { ...gpu.profile, stagingSlotBytes: 512 } };
  return openRanks(place, {
    config: { model: smallModel, devices, strategy, optimizer: { kind: 'adam' }, trainer: { steps: 3 } },
    shape: { batch: 2, tokens: 3 },
    batch: (step, rank) => {
      const input = Array.from({ length: 6 }, (_, i) => (7 * step + 5 * rank + 3 * i) % 11);
      return { input, target: input };
    },
  });
}

const MOMENTS = ['exp_avg', 'exp_avg_sq'];

async function expectSameState(ranks: TestRanks, wanted: TestRanks): Promise<void> {
  for (const part of ['parameters', ...MOMENTS]) {
    const [actual, expected] = await Promise.all(
      [ranks, wanted].map((each) => (part === 'parameters' ? each.parameters() : each.state(part))),
    );
    expectSameBits({ outcomes: [], parameters: actual }, { outcomes: [], parameters: expected }, part);
  }
}

it.each([1, 2])('%i rank(s) train, are read, filled and resumed with the bits of DDP', async (devices) => {
  const ddp = await ranksOf(devices, 'ddp');
  const first = await ranksOf(devices, 'fsdp_cpu_offload');
  const [run] = first.runs;
  const { tensors, steps } = run.steps[0].schedule;
  const keeps = steps.flatMap(({ action }) => (action.type === 'keep' ? [action.parts.map(({ host }) => host)] : []));
  const kept = keeps.filter((hosts) => hosts.some(({ tensor }) => tensors[tensor].name.startsWith('exp_avg ')));
  expect(kept.length).toBeGreaterThan(2 * run.steps[0].groups.length);

  expect(await first.train(2)).toEqual(await ddp.train(2));
  await expectSameState(first, ddp);
  const parameters = await ddp.parameters();
  const moments = new Map<string, Map<string, Float32Array>>();
  for (const name of MOMENTS) moments.set(name, await ddp.state(name));
  await first.close();

  const second = await ranksOf(devices, 'fsdp_cpu_offload');
  const part = (whole: Float32Array, from: number, count: number) => Float32Array.from(whole.slice(from, from + count));
  for (const [rank, engine] of second.engines.entries())
    await fillRank(
      engine,
      second.runs[rank],
      async ({ name }, from, count) => part(parameters.get(name)!, from, count),
      {
        updates: 2,
        state: async (name, state, from, count) => part(moments.get(state)!.get(name)!, from, count),
      },
    );
  await expectSameState(second, ddp);
  expect(await second.train(3, 2)).toEqual(await ddp.train(3, 2));
  await expectSameState(second, ddp);
  await Promise.all([second.close(), ddp.close()]);
});
