import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { expected } from './fixtures/reference-run.ts';
import { type TrainedRun, trainRun } from './fixtures/train-run.ts';

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'resume-'));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

const reference = (name: string) => fileURLToPath(new URL(`../testdata/demo-transformer/${name}`, import.meta.url));
const fsdp = (more: object = {}) => ({ kind: 'fsdp', ...more });

/** The same numbers, bit for bit, at each of these steps. */
function expectSame(resumed: TrainedRun, whole: TrainedRun, steps: readonly number[]): void {
  expect([...resumed.losses.keys()]).toEqual(steps);
  for (const step of steps) {
    expect(resumed.losses.get(step), `losses of step ${step}`).toEqual(whole.losses.get(step));
    expect(resumed.norms.get(step), `norm of step ${step}`).toBe(whole.norms.get(step));
  }
}

describe('training goes on from what PyTorch saved', () => {
  it.each([
    ['fabric_single_step5.ckpt', 1],
    ['fabric_fsdp_full_ws1', 1],
    ['fabric_fsdp_sharded_ws1', 1],
    ['dcp_fsdp1_ws2', 2],
    ['dcp_fsdp2_ws2', 2],
  ])('%s: losses of steps 5 to 9 as PyTorch had them', async (name, devices) => {
    const run = await trainRun(join(folder, 'run'), {
      devices,
      strategy: fsdp(),
      trainer: { steps: 10 },
      checkpoint: { resume: reference(name), atEnd: false },
    });
    expect([...run.losses.keys()]).toEqual([5, 6, 7, 8, 9]);
    for (const [step, byRank] of run.losses) {
      const { losses, grad_norm } = expected[`adam_world${devices}`][step];
      byRank.forEach((loss, rank) => {
        expect(Math.abs(loss / losses[rank][0] - 1), `step ${step}`).toBeLessThan(1e-4);
      });
      expect(Math.abs(run.norms.get(step)! / grad_norm - 1)).toBeLessThan(1e-4);
    }
  });
});

const strategies = {
  ddp: 'ddp',
  FULL_SHARD: fsdp(),
  SHARD_GRAD_OP: fsdp({ shardingStrategy: 'SHARD_GRAD_OP' }),
  'CPU offload': 'fsdp_cpu_offload',
} as const;
const text = { kind: 'moby-dick', blockSize: 8, batchSize: 2 };
const small = { kind: 'demo-transformer', vocabSize: null, ninp: 8, nhead: 2, nhid: 8, nlayers: 1, dropout: 0.1 };

describe('at the same world size, on the interpreter: a run that was interrupted and goes on has the losses of one that was not, bit for bit', () => {
  for (const format of ['full', 'sharded'])
    for (const [name, strategy] of Object.entries(strategies))
      it(`${name}, ${format}`, async () => {
        const config = { model: small, data: text, devices: 2, strategy, trainer: { steps: 6 }, checkpoint: { every: 3, atEnd: false, format } };
        const whole = await trainRun(join(folder, 'whole'), config);
        const [resume] = whole.checkpoints;
        expectSame(
          await trainRun(join(folder, 'rest'), { ...config, checkpoint: { resume, atEnd: false } }),
          whole,
          [3, 4, 5],
        );
      });
});
