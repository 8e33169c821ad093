import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { liveBytes } from '../schedule/memory.ts';
import {
  expected,
  interpreterPlace,
  openRanks,
  type Place,
  referenceInit,
  referenceTensors,
  softwareGpuPlace,
} from './fixtures/reference-run.ts';

/** Law 3: it trains as PyTorch trains. Law 1, on the same runs: predicted equals measured. */

const settings = {
  adam_world1: { devices: 1, optimizer: { kind: 'adam', lr: 1e-3 } },
  adam_world2: { devices: 2, optimizer: { kind: 'adam', lr: 1e-3 } },
  adamw_world2: {
    devices: 2,
    optimizer: { kind: 'adamw', lr: 2e-3, betas: [0.8, 0.95], eps: 1e-7, weightDecay: 0.1 },
  },
  sgd_momentum_world2: { devices: 2, optimizer: { kind: 'sgd', lr: 0.1, momentum: 0.9 } },
} as const;

const strategies = ['ddp', 'fsdp', 'fsdp_cpu_offload'] as const;
const STEPS = 10;

let gpu: Awaited<ReturnType<typeof softwareGpuPlace>>;
beforeAll(async () => {
  gpu = await softwareGpuPlace();
}, 60_000);
afterAll(() => gpu?.device.close());

const places: Record<string, () => Place> = { interpreter: () => interpreterPlace, 'a software GPU': () => gpu };

describe.each(Object.keys(places))('against real PyTorch, on %s', (placeName) => {
  for (const [setting, config] of Object.entries(settings))
    for (const strategy of strategies)
      it(`${setting} under ${strategy}: losses, norms, memory, weights`, async () => {
        const ranks = await openRanks(places[placeName](), {
          config: { ...config, strategy },
          source: await referenceInit(),
        });
        const outcomes = await ranks.train(STEPS);
        outcomes.forEach((byRank, step) => {
          const reference = expected[setting][step];
          byRank.forEach(({ loss, gradNorm }, rank) => {
            expect(Math.abs(loss / reference.losses[rank][0] - 1)).toBeLessThan(1e-4);
            expect(Math.abs(gradNorm / reference.grad_norm - 1)).toBeLessThan(1e-4);
          });
        });
        expectMemoryAsPlanned(ranks);
        if (setting === 'adam_world1' || setting === 'adam_world2')
          await expectWeights(await ranks.parameters(), `${setting}_final.safetensors`, config.optimizer.lr);
        await ranks.close();
      });
});

/** Live by category at every step, and reserved, to the byte; every touch within its planned life. */
function expectMemoryAsPlanned(ranks: Awaited<ReturnType<typeof openRanks>>): void {
  ranks.runs.forEach((run, rank) => {
    const { schedule } = run.steps[0];
    const iteration = STEPS - 2;
    ranks.recorders[rank].check(iteration, schedule);
    expect(ranks.recorders[rank].liveBytes(iteration, schedule.steps.length)).toEqual(liveBytes(schedule));
    expect(ranks.engines[rank].memory().peakBytes).toBe(run.memory.reservedBytes);
  });
}

/** Law 3's tolerance, and its exception by name: the key third of each in_proj_bias, whose true gradient is 0. */
async function expectWeights(ours: Map<string, Float32Array>, file: string, lr: number): Promise<void> {
  for (const [name, theirs] of await referenceTensors(file)) {
    const mine = ours.get(name)!;
    const third = theirs.length / 3;
    theirs.forEach((value, i) => {
      const isKeyBias = name.endsWith('in_proj_bias') && i >= third && i < 2 * third;
      const bound = isKeyBias ? STEPS * lr : 1e-4;
      if (!(Math.abs(mine[i] - value) <= bound)) throw new Error(`${name}[${i}]: ${mine[i]}, PyTorch has ${value}`);
    });
  }
}
