import { afterAll, beforeAll, expect, it } from 'vitest';
import type { Schedule } from '../schedule/schedule.ts';
import { ranksOf, strategies } from './fixtures/reference-columns.ts';
import { openRanks, softwareGpuPlace } from './fixtures/reference-run.ts';

/** Report 16: the host waits for the device where the schedule reads or writes something there, and nowhere else. */

let gpu: Awaited<ReturnType<typeof softwareGpuPlace>>;
/** How often the host asked a buffer to be mapped for reading and for writing, and waited for the queue. */
const asked = { reads: 0, writes: 0, queue: 0 };

beforeAll(async () => {
  gpu = await softwareGpuPlace();
  const { device } = gpu.device;
  const mapAsync = GPUBuffer.prototype.mapAsync;
  GPUBuffer.prototype.mapAsync = function (mode, ...range) {
    asked[mode === GPUMapMode.READ ? 'reads' : 'writes']++;
    return mapAsync.call(this, mode, ...range);
  };
  const done = GPUQueue.prototype.onSubmittedWorkDone;
  GPUQueue.prototype.onSubmittedWorkDone = function () {
    asked.queue++;
    return done.call(this);
  };
  await device.queue.onSubmittedWorkDone();
  expect(asked).toEqual({ reads: 0, writes: 0, queue: 1 });
});
afterAll(() => gpu?.device.close());

/** What the steps of a schedule need: a read for each copy to the host, a map for each copy from it, no wait for the queue. */
function waitsOf({ steps }: Schedule) {
  const count = (...types: string[]) => steps.filter(({ action }) => types.includes(action.type)).length;
  return { reads: count('publish', 'store', 'keep', 'report'), writes: count('collect', 'fetch'), queue: 0 };
}

const clips = {
  'no clipping': {},
  'by norm': { gradientClipVal: 0.5 },
  'by value': { gradientClipVal: 0.5, gradientClipAlgorithm: 'value' },
};
const model = { kind: 'demo-transformer', vocabSize: 7, ninp: 4, nhead: 2, nhid: 4, nlayers: 1 };

it.each(['DDP', 'NO_SHARD', 'SHARD_GRAD_OP', 'FULL_SHARD', 'HYBRID_SHARD', 'offloaded FULL_SHARD'])(
  '16: a step of %s waits as its schedule says, the same however gradients are clipped',
  async (name) => {
    const devices = ranksOf(strategies[name]);
    for (const [clip, trainer] of Object.entries(clips)) {
      const ranks = await openRanks(gpu, {
        config: { model, devices, strategy: strategies[name], trainer },
        shape: { batch: 1, tokens: 3 },
        batch: (step, rank) => ({ input: [1, 2, rank], target: [2, step, 3] }),
      });
      await ranks.train(2);
      Object.assign(asked, { reads: 0, writes: 0, queue: 0 });
      await ranks.train(4, 2);
      const wanted = waitsOf(ranks.runs[0].steps[0].schedule);
      const steps = 2 * devices;
      expect(asked, clip).toEqual({ reads: steps * wanted.reads, writes: steps * wanted.writes, queue: 0 });
      await ranks.close();
    }
  },
);

it('16: on one rank without offload the host waits once a step, for the report', async () => {
  for (const strategy of ['ddp', 'fsdp']) {
    const ranks = await openRanks(gpu, { config: { model, devices: 1, strategy, trainer: clips['by norm'] } });
    await ranks.train(1);
    Object.assign(asked, { reads: 0, writes: 0, queue: 0 });
    await ranks.train(4, 1);
    expect(asked).toEqual({ reads: 3, writes: 0, queue: 0 });
    await ranks.close();
  }
});
