import { createHash } from 'node:crypto';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { elementCount } from '../checkpoint/dtype.ts';
import { isStoredTensor, type StoredCheckpointTensor, samplesOf, scalerOf } from '../checkpoint/stored-checkpoint.ts';
import { openCheckpointPath } from './checkpoint-path.ts';
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
        const config = {
          model: small,
          data: text,
          devices: 2,
          strategy,
          trainer: { steps: 6 },
          checkpoint: { every: 3, atEnd: false, format },
        };
        const whole = await trainRun(join(folder, 'whole'), config);
        const [resume] = whole.checkpoints;
        expectSame(
          await trainRun(join(folder, 'rest'), { ...config, checkpoint: { resume, atEnd: false } }),
          whole,
          [3, 4, 5],
        );
      });
});

describe('what changes from step to step goes on from where it was, bit for bit', () => {
  it('a learning-rate schedule, resumed in its warm-up and in its cosine, with accumulation and clipping', async () => {
    const config = {
      model: small,
      data: text,
      devices: 2,
      strategy: fsdp(),
      lrSchedule: { kind: 'cosine', warmupSteps: 3, minLr: 1e-5 },
      trainer: { steps: 6, accumulateGradBatches: 2, gradientClipVal: 0.5 },
      checkpoint: { every: 2, atEnd: false },
    };
    const whole = await trainRun(join(folder, 'whole'), config);
    // The clipping is at work.
    expect(Math.min(...whole.norms.values())).toBeGreaterThan(0.5);
    for (const [i, steps] of [
      [2, 3, 4, 5],
      [4, 5],
    ].entries()) {
      const checkpoint = { resume: whole.checkpoints[i], atEnd: false };
      expectSame(await trainRun(join(folder, `rest-${i}`), { ...config, checkpoint }), whole, steps);
    }
  });

  it.each(['full', 'sharded'])('a loss scale that overflows have lowered, from a %s checkpoint', async (format) => {
    const config = {
      model: { ...small, dropout: 0 },
      data: text,
      devices: 2,
      strategy: fsdp(),
      precision: '16-mixed',
      optimizer: { kind: 'adam', lr: 0.3 },
      trainer: { steps: 8 },
    };
    const whole = await trainRun(join(folder, 'whole'), { ...config, checkpoint: { every: 5, format } });
    const { checkpoint: saved, close } = await openCheckpointPath(whole.checkpoints[0]);
    // Step 3 overflows, step 4 does not.
    expect(scalerOf(saved)).toEqual({ scale: 32_768, goodSteps: 1 });
    await close();
    const checkpoint = { resume: whole.checkpoints[0], format };
    const rest = await trainRun(join(folder, 'rest'), { ...config, checkpoint });
    expectSame(rest, whole, [5, 6, 7]);
    // The scale and its count of good steps at the end are among the keys.
    expect(await contentsOf(rest.checkpoints[0])).toEqual(await contentsOf(whole.checkpoints[1]));
  });
});

describe('under other settings', () => {
  const wide = { model: small, data: { ...text, batchSize: 4 } };
  const optimizer = {
    kind: 'adamw',
    groups: [
      { match: '*bias', weightDecay: 0 },
      { match: '*encoder.*', lr: 0.0005 },
    ],
  };
  const common = { model: { ...small, dropout: 0 }, optimizer, trainer: { steps: 6 } };
  const batch = (batchSize: number) => ({ ...text, batchSize });
  const layouts = [
    { devices: 1, strategy: 'ddp', data: batch(4) },
    { devices: 1, strategy: 'fsdp_cpu_offload', data: batch(4) },
    { devices: 2, strategy: fsdp({ shardingStrategy: 'NO_SHARD' }), data: batch(2) },
    { devices: 2, strategy: fsdp(), data: batch(1), trainer: { steps: 6, accumulateGradBatches: 2 } },
    { devices: 3, strategy: fsdp({ shardingStrategy: 'SHARD_GRAD_OP' }), data: batch(4) },
    { devices: 4, strategy: fsdp({ shardingStrategy: 'HYBRID_SHARD', deviceMesh: [2, 2] }), data: batch(1) },
    { devices: 4, strategy: 'fsdp_cpu_offload', data: batch(1) },
  ];

  it.each(['full', 'sharded'])(
    'lossMean goes on within 1e-4 on any number of ranks, from a %s checkpoint',
    async (format) => {
      const four = { ...common, ...layouts[5], checkpoint: { every: 3, atEnd: false, format } };
      const whole = await trainRun(join(folder, 'whole'), four);
      for (const [i, layout] of layouts.entries()) {
        const checkpoint = { resume: whole.checkpoints[0], atEnd: false };
        const rest = await trainRun(join(folder, `rest-${i}`), { ...common, ...layout, checkpoint });
        expect([...rest.lossMeans.keys()]).toEqual([3, 4, 5]);
        // Three ranks of four samples see other batches from the same sample on: only the first weights are the same.
        if (layout.devices === 3) continue;
        for (const [step, loss] of rest.lossMeans)
          expect(
            Math.abs(loss / whole.lossMeans.get(step)! - 1),
            `step ${step} of ${JSON.stringify(layout)}`,
          ).toBeLessThan(1e-4);
      }
    },
  );

  it('every strategy saves the same bytes, and each goes on from what another saved with the same bits', async () => {
    const data = batch(1);
    const strategies = [
      'ddp',
      fsdp(),
      fsdp({ shardingStrategy: 'HYBRID_SHARD', deviceMesh: [2, 2] }),
      fsdp({ shardingStrategy: 'SHARD_GRAD_OP', autoWrapPolicy: ['Linear'] }),
      'fsdp_cpu_offload',
    ];
    const saved: TrainedRun[] = [];
    for (const [i, strategy] of strategies.entries())
      saved.push(
        await trainRun(join(folder, `whole-${i}`), {
          ...common,
          data,
          devices: 4,
          strategy,
          checkpoint: { every: 3, format: i % 2 ? 'sharded' : 'full' },
        }),
      );
    for (const [i, strategy] of strategies.entries()) {
      const checkpoint = { resume: saved[(i + 1) % strategies.length].checkpoints[0], atEnd: false };
      expectSame(
        await trainRun(join(folder, `rest-${i}`), { ...common, data, devices: 4, strategy, checkpoint }),
        saved[0],
        [3, 4, 5],
      );
    }
  });

  it('a batches file goes on from the same sample with other micro-batches: its entries are read once each', async () => {
    const one = { strategy: 'ddp', devices: 2, checkpoint: { every: 5, format: 'full' } };
    const whole = await trainRun(join(folder, 'whole'), { ...one, trainer: { steps: 11 } });
    const checkpoint = { resume: whole.checkpoints[0] };
    const rest = await trainRun(join(folder, 'rest'), {
      ...one,
      checkpoint,
      trainer: { steps: 12, accumulateGradBatches: 2 },
    });
    expect(rest.losses.size).toBe(7);
    // 5 entries one by one, 7 steps of two: the 20th is the next.
    const { checkpoint: last, close } = await openCheckpointPath(rest.checkpoints.at(-1)!);
    expect(samplesOf(last)).toBe(19 * 2 * 3);
    await close();
  });

  it('across adapters, from plain TypeScript to a software GPU and back, losses go on within 1e-4', async () => {
    const config = { ...wide, devices: 1, strategy: 'ddp', trainer: { steps: 6 } };
    const checkpoint = { every: 3, atEnd: false, format: 'full' };
    const adapters = ['interpreter', 'swiftshader'];
    const whole = [];
    for (const adapterId of adapters)
      whole.push(await trainRun(join(folder, adapterId), { ...config, checkpoint }, { adapterId }));
    for (const [i, adapterId] of adapters.entries()) {
      const resume = { resume: whole[1 - i].checkpoints[0], atEnd: false };
      const rest = await trainRun(join(folder, `on-${adapterId}`), { ...config, checkpoint: resume }, { adapterId });
      expect([...rest.lossMeans.keys()]).toEqual([3, 4, 5]);
      for (const [step, loss] of rest.lossMeans)
        for (const { lossMeans } of whole)
          expect(Math.abs(loss / lossMeans.get(step)! - 1), `step ${step} on ${adapterId}`).toBeLessThan(1e-4);
    }
  });

  it('a checkpoint of weights starts a new run: step 0, fresh optimizer', async () => {
    const whole = await trainRun(join(folder, 'whole'), { ...wide, trainer: { steps: 2 } });
    const next = await trainRun(join(folder, 'next'), {
      ...wide,
      init: { from: whole.checkpoints[0] },
      trainer: { steps: 1 },
    });
    expect([...next.losses.keys()]).toEqual([0]);
    expect(next.logs.join()).toContain('the weights are those of');
  });
});

describe('what does not fit is refused by name', () => {
  const config = { devices: 1, strategy: 'ddp', trainer: { steps: 3 } };
  const resumeWith = (resume: string, more: object = {}) =>
    trainRun(join(folder, 'rest'), { ...config, trainer: { steps: 6 }, checkpoint: { resume, atEnd: false }, ...more });

  it('another model; not strict, what is missing is initialised and both are listed (52)', async () => {
    const { checkpoints } = await trainRun(join(folder, 'whole'), {
      ...config,
      checkpoint: { filter: ['decoder.*', '*.norm1.*'], format: 'full' },
    });
    await expect(resumeWith(checkpoints[0])).rejects.toThrow(
      /\d+ missing \(embedding.weight.*Set checkpoint.strict to false/s,
    );
    const rest = await resumeWith(checkpoints[0], {
      checkpoint: { resume: checkpoints[0], strict: false, atEnd: false },
    });
    expect(rest.logs.join()).toMatch(/missing, initialised afresh: .*encoder/);
    expect(rest.logs.join()).toMatch(/without state, which starts at zero/);
  });

  it('a parameter whose optimizer state is missing, by its name (4, 53)', async () => {
    const sgd = { ...config, optimizer: { kind: 'sgd', momentum: 0.9 } };
    const { checkpoints } = await trainRun(join(folder, 'whole'), sgd);
    await expect(resumeWith(checkpoints[0])).rejects.toThrow(
      /without state \(embedding.weight: step, embedding.weight: exp_avg/,
    );
  });

  it('weights without an optimizer', async () => {
    const { checkpoints } = await trainRun(join(folder, 'whole'), { ...config, checkpoint: { format: 'safetensors' } });
    await expect(resumeWith(checkpoints[0])).rejects.toThrow(/has no optimizer state.*init.from/);
  });

  it('nothing left to train', async () => {
    const { checkpoints } = await trainRun(join(folder, 'whole'), config);
    await expect(resumeWith(checkpoints[0], { trainer: { steps: 3 } })).rejects.toThrow(
      /trainer.steps: .* 3 steps done/,
    );
  });

  it('a bit that changed on disk, by the digest, and the file is named (30)', async () => {
    for (const format of ['full', 'sharded']) {
      const { checkpoints } = await trainRun(join(folder, format), { ...config, checkpoint: { format } });
      const file = format === 'full' ? checkpoints[0] : join(checkpoints[0], '__0_0.distcp');
      const bytes = await readFile(file);
      bytes[bytes.length >> 1] ^= 1;
      await writeFile(file, bytes);
      await expect(resumeWith(checkpoints[0])).rejects.toMatchObject({
        code: 'bad-file',
        message: expect.stringMatching(new RegExp(`${basename(file)}.*sha256`)),
      });
    }
  });

  it('a rank file of another save in the folder (56)', async () => {
    const two = { ...config, devices: 2, strategy: fsdp(), checkpoint: { every: 1 } };
    const { checkpoints } = await trainRun(join(folder, 'whole'), two);
    await writeFile(join(checkpoints[0], '__1_0.distcp'), await readFile(join(checkpoints[1], '__1_0.distcp')));
    await rm(`${checkpoints[0]}.sha256`);
    await expect(resumeWith(checkpoints[0])).rejects.toThrow(/__1_0.distcp is of another save/);
  });

  it('a folder that an earlier run went on in', async () => {
    const { checkpoints } = await trainRun(join(folder, 'whole'), { ...config, checkpoint: { every: 1 } });
    await expect(
      trainRun(join(folder, 'whole'), { ...config, checkpoint: { resume: checkpoints[0] } }),
    ).rejects.toMatchObject({ code: 'conflict' });
    expect(await readdir(join(folder, 'whole', 'checkpoints'))).toHaveLength(6);
  });
});

describe('round trips', () => {
  it('a stateless optimizer (54)', async () => {
    const config = { devices: 2, strategy: fsdp(), optimizer: { kind: 'sgd', lr: 0.1 }, trainer: { steps: 6 } };
    for (const format of ['full', 'sharded']) {
      const whole = await trainRun(join(folder, format), { ...config, checkpoint: { every: 3, format } });
      const checkpoint = { resume: whole.checkpoints[0], atEnd: false };
      expectSame(await trainRun(join(folder, `${format}-rest`), { ...config, checkpoint }), whole, [3, 4, 5]);
    }
  });

  it('save, load, save: the same keys, and the same bytes under each (6, 7)', async () => {
    const config = { devices: 2, strategy: fsdp(), trainer: { steps: 4 } };
    for (const format of ['full', 'sharded']) {
      const whole = await trainRun(join(folder, format), { ...config, checkpoint: { every: 2, format } });
      const checkpoint = { resume: whole.checkpoints[0], format };
      const rest = await trainRun(join(folder, `${format}-rest`), { ...config, checkpoint });
      expect(await contentsOf(rest.checkpoints[0])).toEqual(await contentsOf(whole.checkpoints[1]));
    }
  });
});

/** Every tensor with a digest of its bytes, the options of the groups, and the other keys but the config. */
async function contentsOf(path: string) {
  const { checkpoint, close } = await openCheckpointPath(path);
  const tensors: [string, string][] = [];
  const add = async (name: string, tensor: StoredCheckpointTensor) => {
    const bytes = await tensor.readBytes(0, elementCount(tensor.shape));
    tensors.push([`${name} ${tensor.dtype} ${tensor.shape}`, createHash('sha256').update(bytes).digest('hex')]);
  };
  for (const [name, tensor] of checkpoint.model) await add(name, tensor);
  for (const { path: at, state } of checkpoint.optimizers)
    for (const [id, parts] of state)
      for (const [part, value] of parts) if (isStoredTensor(value)) await add([...at, id, part].join('.'), value);
  const { optimizers, rest } = checkpoint;
  await close();
  rest.delete('config');
  return { tensors, groups: optimizers.map(({ groups }) => groups), rest };
}
