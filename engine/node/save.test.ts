import { spawnSync } from 'node:child_process';
import { mkdir, mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, it, type TestContext } from 'vitest';
import { StudioError } from '../errors.ts';
import type { RunEvent } from '../trainer/events.ts';
import type { CheckpointStore } from '../trainer/save-checkpoint.ts';
import { listCheckpoints } from './checkpoint-list.ts';
import { folderStore } from './checkpoint-store.ts';
import { verifyCheckpoint } from './checkpoint-verify.ts';
import { type RanksOptions, type SavingRanks, startSavingRanks } from './fixtures/saving-ranks.ts';
import { referenceRun, trainRun } from './fixtures/train-run.ts';

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'save-'));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

const start = (input: object, options?: RanksOptions) => startSavingRanks(folder, input, options);
const listed = async () =>
  (await listCheckpoints(join(folder, 'checkpoints'))).map(({ step, format }) => [step, format]);
const failures = (results: readonly PromiseSettledResult<unknown>[]) =>
  results.map((r) => (r.status === 'rejected' ? String(r.reason.message) : null));

describe('when a run saves', () => {
  it('every N steps and at the end, in the form that the strategy says', async () => {
    for (const [strategy, format] of [
      ['fsdp', 'sharded'],
      ['ddp', 'full'],
      [{ kind: 'fsdp', stateDictType: 'full' }, 'full'],
    ] as const) {
      const { results } = await start({ strategy, trainer: { steps: 5 }, checkpoint: { every: 2 } });
      await results;
      expect(await listed()).toEqual([2, 4, 5].map((step) => [step, format]));
      await rm(join(folder, 'checkpoints'), { recursive: true });
    }
  });

  it('as weights alone', async () => {
    const { results } = await start({ trainer: { steps: 1 }, checkpoint: { format: 'safetensors' } });
    await results;
    expect(await listed()).toEqual([[1, 'safetensors']]);
    await verifyCheckpoint(join(folder, 'checkpoints', 'step-000001.safetensors'));
  });

  it('on request, asked of any rank alone, all ranks at one step (33, 34)', async () => {
    for (const asked of [0, 1]) {
      const { results } = await start(
        { devices: 2, trainer: { steps: 9 }, checkpoint: { atEnd: false } },
        { savesRequested: (rank, ranks) => (rank === asked && ranks.steps().length > 2 ? 1 : 0) },
      );
      expect(failures(await results)).toEqual([null, null]);
      expect(await listed()).toEqual([[6, 'sharded']]);
      await rm(join(folder, 'checkpoints'), { recursive: true });
    }
  });

  it('when it is stopped with a save, though nothing is saved at the end otherwise', async () => {
    const late = (_: number, ranks: SavingRanks) => ranks.steps().length > 2;
    const { results } = await start(
      { devices: 2, trainer: { steps: 9 }, checkpoint: { atEnd: false } },
      { stopRequested: late, savesRequested: (rank, ranks) => (late(rank, ranks) ? 1 : 0) },
    );
    expect(await results).toMatchObject([{ value: { status: 'stopped' } }, { value: { status: 'stopped' } }]);
    expect(await listed()).toHaveLength(1);
  });

  it('keeps the last K', async () => {
    const ranks = await start({ devices: 2, trainer: { steps: 6 }, checkpoint: { every: 1, keepLast: 2 } });
    const [first] = await ranks.results;
    expect(await listed()).toEqual([5, 6].map((step) => [step, 'sharded']));
    expect(first).toMatchObject({ value: { checkpoints: [{ step: 5 }, { step: 6 }] } });
    const removed = ranks.events.flatMap((e) => (e.event === 'checkpoint' ? (e.removed ?? []) : []));
    expect(removed.map((path) => path.slice(-11))).toEqual([1, 2, 3, 4].map((step) => `step-00000${step}`));
    expect((await readdir(join(folder, 'checkpoints'))).sort()).toHaveLength(4);
  });

  it('a part of the names, as filter says', async () => {
    const { checkpoints } = await trainRun(join(folder, 'run'), {
      strategy: 'ddp',
      trainer: { steps: 1 },
      checkpoint: { filter: ['decoder.*'] },
    });
    expect(checkpoints).toHaveLength(1);
    await expect(
      trainRun(join(folder, 'other'), { strategy: 'ddp', trainer: { steps: 1 }, checkpoint: { filter: ['nope.*'] } }),
    ).rejects.toThrow(/checkpoint.filter: nope.\* fits no parameter/);
  });
});

describe('beside training', () => {
  /** A disk that takes nothing until it is let. */
  function held() {
    let release!: () => void;
    const gate = new Promise<void>((resolve) => {
      release = resolve;
    });
    const store = (disk: CheckpointStore): CheckpointStore => ({
      ...disk,
      writeFile: async (...args) => gate.then(() => disk.writeFile(...args)),
      writeRankFile: async (...args) => gate.then(() => disk.writeRankFile(...args)),
    });
    return { store, release };
  }

  it.each(['full', 'sharded'])(
    '%s: steps go on while the disk is slow, and what is written is of the step it says',
    async (format) => {
      const { store, release } = held();
      const config = { devices: 2, trainer: { steps: 8 }, checkpoint: { every: 3, atEnd: false, format } };
      const ranks = await start(config, { store });
      // The next save waits for this one: so far and no further.
      while (ranks.steps().length < 6) await sleep(5);
      await sleep(50);
      expect([ranks.steps().length, await listed()]).toEqual([6, []]);
      release();
      await ranks.results;
      expect(await listed()).toEqual([3, 6].map((step) => [step, format]));

      const whole = join(folder, 'checkpoints', format === 'full' ? 'step-000003.ckpt' : 'step-000003');
      const straight = await trainRun(join(folder, 'straight'), { ...config, trainer: { steps: 8, seed: 1 } });
      const rest = await trainRun(join(folder, 'rest'), { ...config, checkpoint: { resume: whole, atEnd: false } });
      for (const step of [3, 7]) expect(rest.losses.get(step)).toEqual(straight.losses.get(step));
    },
  );

  it('training waits where the host has no room for a copy, and says so', async () => {
    const { store, release } = held();
    const tight = (disk: CheckpointStore) => ({ ...store(disk), freeMemoryBytes: () => 1000 });
    const config = { devices: 2, trainer: { steps: 4 }, checkpoint: { every: 2, atEnd: false } };
    const ranks = await start(config, { store: tight });
    while (!ranks.events.some(({ event }) => event === 'log')) await sleep(5);
    await sleep(50);
    expect(ranks.steps()).toEqual([0, 1]);
    release();
    expect(failures(await ranks.results)).toEqual([null, null]);
    expect(ranks.events.find(({ event }) => event === 'log')).toMatchObject({
      line: expect.stringMatching(/training waits while it is saved: a copy takes \d+ MiB/),
    });
    expect(await listed()).toEqual([
      [2, 'sharded'],
      [4, 'sharded'],
    ]);
  });

  it('a listed checkpoint is complete (31), and host memory grows by one shard (1)', async () => {
    const { store, release } = held();
    const ranks = await start({ devices: 2, trainer: { steps: 4 }, checkpoint: { every: 3, atEnd: false } }, { store });
    while (ranks.steps().length < 4) await sleep(5);
    expect(ranks.events.filter(({ event }) => event === 'checkpoint')).toEqual([]);
    // Parameters, exp_avg and exp_avg_sq of its shard, padding included, and three scalars: read once, at the save.
    for (const [rank, { steps }] of ranks.runs.entries()) {
      const shard = steps[0].groups.reduce((sum, { layout }) => sum + layout.shardElements * 4, 0);
      expect(ranks.reads[rank]).toBe(3 * shard + 12);
    }
    release();
    await ranks.results;
    expect(ranks.events.filter(({ event }) => event === 'checkpoint')).toHaveLength(1);
  });

  it('under DDP only rank 0 copies its state (2); rows of a mesh but the first write nothing', async () => {
    const ddp = await start({ devices: 2, strategy: 'ddp', trainer: { steps: 2 }, checkpoint: { every: 1 } });
    await ddp.results;
    expect(ddp.reads[0]).toBeGreaterThan(100_000);
    expect(ddp.reads[1]).toBeLessThan(100);
  });
});

describe('a disk that fails', () => {
  const broken = (call: keyof CheckpointStore, onRank: number, from: number) => {
    let calls = 0;
    return (disk: CheckpointStore, rank: number): CheckpointStore => ({
      ...disk,
      [call]: async (...args: never[]) => {
        if (rank === onRank && ++calls >= from)
          throw new StudioError('io', `the disk of rank ${rank} is full`, { code: 'ENOSPC' });
        return (disk[call] as (...a: never[]) => Promise<unknown>)(...args);
      },
    });
  };
  const cases = [
    ['beginFolder', 0, 'sharded'],
    ['writeRankFile', 0, 'sharded'],
    ['writeRankFile', 1, 'sharded'],
    ['finishFolder', 0, 'sharded'],
    ['writeFile', 0, 'full'],
    ['writeFile', 0, 'safetensors'],
  ] as const;

  it.each(cases)(
    '%s of rank %i, %s: training goes on, the reason is said, the earlier checkpoint stays',
    async (call, rank, format) => {
      const config = { devices: 2, trainer: { steps: 4 }, checkpoint: { every: 1, format, keepLast: 1 } };
      const { results, events } = await start(config, { store: broken(call, rank, 2) });
      expect(failures(await results)).toEqual([null, null]);
      for (const result of await results)
        expect(result.status === 'fulfilled' && result.value.unsaved?.message).toMatch(/after 4 steps was not saved/);
      expect(await listed()).toEqual([[1, format]]);
      const lines = events.flatMap((e) => (e.event === 'log' ? [e.line] : []));
      expect(lines).toHaveLength(3);
      expect(lines[0]).toMatch(/the checkpoint after 2 steps was not saved: .*the disk of rank \d is full/);
      const left = await readdir(join(folder, 'checkpoints'));
      expect(left.filter((name) => name.includes('saving') || name.includes('part'))).toEqual([]);
    },
  );

  it.each(cases)('%s of rank %i, %s: onSaveError stop ends all ranks with the reason', async (call, rank, format) => {
    const config = { devices: 2, trainer: { steps: 9 }, checkpoint: { every: 2, format, onSaveError: 'stop' } };
    const { results } = await start(config, { store: broken(call, rank, 2) });
    for (const failure of failures(await results))
      expect(failure).toMatch(/the checkpoint after 4 steps was not saved: .*the disk of rank \d is full/);
    expect(await listed()).toEqual([[2, format]]);
  });

  describe('that is full, a real one', () => {
    const disk = () => join(folder, 'disk');
    /** Room for two or three checkpoints of each form. */
    const sizes = { full: '200k', sharded: '700k', safetensors: '64k' };
    const mount = async (format: keyof typeof sizes, context: TestContext) => {
      await mkdir(disk());
      const { status } = spawnSync('mount', ['-t', 'tmpfs', '-o', `size=${sizes[format]}`, 'tmpfs', disk()]);
      if (status !== 0) context.skip('only root may mount a file system');
    };
    afterEach(() => {
      spawnSync('umount', ['-l', disk()]);
    });
    const config = (format: string, onSaveError: string) => ({
      model: { ...referenceRun.model, ninp: 8, nhead: 2, nhid: 8, nlayers: 1 },
      devices: 2,
      trainer: { steps: 5 },
      checkpoint: { every: 1, format, onSaveError },
    });

    it.for(['full', 'sharded', 'safetensors'] as const)(
      '%s: training goes on, what was saved before loads, and the end says that the last was not',
      async (format, context) => {
        await mount(format, context);
        const events: RunEvent[] = [];
        const run = trainRun(disk(), config(format, 'continue'), { emit: (event) => events.push(event) });
        await expect(run).rejects.toThrow(/the checkpoint after 5 steps was not saved: .*the disk is full/);
        expect(events.flatMap((e) => (e.event === 'step' && e.rank === 0 ? [e.step] : []))).toEqual([0, 1, 2, 3, 4]);
        const logs = events.flatMap((e) => (e.event === 'log' ? [e.line] : []));
        expect(logs.join()).toMatch(/the checkpoint after \d steps was not saved: .*the disk is full/);
        const whole = await listCheckpoints(join(disk(), 'checkpoints'));
        expect(whole.map(({ path }) => path)).toEqual(
          events.flatMap((e) => (e.event === 'checkpoint' ? [e.path] : [])),
        );
        expect(whole.length).toBeGreaterThan(0);
        for (const { path } of whole) await verifyCheckpoint(path);
        expect(await readdir(join(disk(), 'checkpoints'))).toHaveLength(2 * whole.length);
      },
    );

    it('stops where onSaveError says so', async (context) => {
      await mount('sharded', context);
      await expect(trainRun(disk(), config('sharded', 'stop'))).rejects.toThrow(/was not saved: .*the disk is full/);
      const whole = await listCheckpoints(join(disk(), 'checkpoints'));
      expect(whole.length).toBeGreaterThan(0);
      for (const { path } of whole) await verifyCheckpoint(path);
    });
  });

  it('a folder that is not there and cannot be made', async () => {
    const { results, events } = await start(
      { trainer: { steps: 2 } },
      { store: () => folderStore(join(referenceRun.data.path, 'no')) },
    );
    expect(failures(await results)).toEqual([null, null]);
    expect(events.find(({ event }) => event === 'log')).toMatchObject({
      line: expect.stringContaining('batches.json/no'),
    });
  });
});

describe('ranks with nothing to write', () => {
  it.each([
    [5, 'sharded'],
    [8, 'sharded'],
    [5, 'full'],
    [8, 'full'],
  ])('%i ranks, more than some dimension has rows: saved and loaded, %s (9, 35)', async (devices, format) => {
    const model = { ...referenceRun.model, ninp: 2, nhead: 1, nhid: 3, nlayers: 1 };
    const data = { kind: 'moby-dick', blockSize: 4 };
    const config = { model: { ...model, vocabSize: null }, data, devices, trainer: { steps: 3 } };
    const whole = await trainRun(join(folder, 'whole'), { ...config, checkpoint: { every: 2, format } });
    const checkpoint = { resume: whole.checkpoints[0], atEnd: false };
    const rest = await trainRun(join(folder, 'rest'), { ...config, checkpoint });
    expect(rest.losses.get(2)).toEqual(whole.losses.get(2));
  });
});
