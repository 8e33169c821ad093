import { existsSync } from 'node:fs';
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { StoredCheckpointTensor } from '../checkpoint/stored-checkpoint.ts';
import { openInProcessMailboxes } from '../comm/in-process.ts';
import { parseConfig } from '../config.ts';
import { Interpreter } from '../interpret/interpreter.ts';
import { buildModel } from '../model/build-model.ts';
import { CONTROL } from '../ops/control.ts';
import { rowsOf } from '../ops/shard/layout.ts';
import { compileRun } from '../schedule/compile.ts';
import { builtInProfiles } from '../schedule/profile.ts';
import type { Schedule } from '../schedule/schedule.ts';
import { describeCheckpoint } from '../trainer/describe-checkpoint.ts';
import { type CheckpointStore, saveCheckpoint } from '../trainer/save-checkpoint.ts';
import { fillRank, freshParameters } from '../trainer/state.ts';
import { engineReader } from '../trainer/state-reader.ts';
import { trainerRegions } from '../trainer/train-rank.ts';
import { waitTogether } from '../trainer/wait-together.ts';
import { listCheckpoints, removeCheckpointLeftovers } from './checkpoint-list.ts';
import { openCheckpointPath } from './checkpoint-path.ts';
import { folderStore } from './checkpoint-store.ts';
import { startSavingRanks } from './fixtures/saving-ranks.ts';
import { referenceRun, trainRun } from './fixtures/train-run.ts';
import { openStart } from './open-start.ts';

/** Of ../shared/fabric-semantics.md section 9: what others have suffered from, by number. More are beside what they test. */
let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'checkpoint-statements-'));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

const failures = (results: readonly PromiseSettledResult<unknown>[]) =>
  results.map((r) => (r.status === 'rejected' ? String(r.reason.message) : null));
const listed = async () => (await listCheckpoints(join(folder, 'checkpoints'))).map(({ step }) => step);
const hybrid = { kind: 'fsdp', shardingStrategy: 'HYBRID_SHARD', deviceMesh: [2, 2] };

describe('2: in a full save only rank 0 ever holds the full state on the host', () => {
  it.each([
    ['FULL_SHARD', { kind: 'fsdp' }, 3, 3],
    ['CPU offload', 'fsdp_cpu_offload', 3, 3],
    ['HYBRID_SHARD', hybrid, 4, 2],
    ['DDP', 'ddp', 3, 1],
  ] as const)('%s', async (_, strategy, devices, holders) => {
    const model = { ...referenceRun.model, ninp: 8, nhead: 2, nhid: 8, nlayers: 1 };
    const ranks = await startSavingRanks(folder, {
      model,
      devices,
      strategy,
      trainer: { steps: 3 },
      checkpoint: { every: 2, atEnd: false, format: 'full' },
    });
    expect(failures(await ranks.results)).toEqual(ranks.runs.map(() => null));
    expect(await listed()).toEqual([2]);
    for (const [rank, { steps }] of ranks.runs.entries()) {
      const shard = steps[0].groups.reduce((sum, { layout }) => sum + layout.shardElements * 4, 0);
      // Parameters and two parts of state of its own shard, and three scalars; nothing where others hold the same.
      expect(ranks.reads[rank], `rank ${rank}`).toBe((rank < holders ? 3 * shard : 0) + 12);
    }
    // What travels is looked at by rank 0; the others read the result of the save alone.
    const [first, ...others] = ranks.looks();
    expect(others).toEqual(others.map(() => devices - 1));
    if (holders > 1) expect(first).toBeGreaterThan(60);
  });
});

it('4: resume restores exp_avg, exp_avg_sq and step bit-equal, and the weights', async () => {
  const input = { devices: 2, strategy: { kind: 'fsdp' }, trainer: { steps: 3 }, checkpoint: { every: 3 } };
  const { checkpoints } = await trainRun(join(folder, 'run'), input);
  const config = parseConfig({
    ...referenceRun,
    ...input,
    trainer: { steps: 5 },
    checkpoint: { resume: checkpoints[0] },
  });
  const model = buildModel(config.model, null);
  const start = await openStart(config, model);
  const { checkpoint, close } = await openCheckpointPath(checkpoints[0]);
  const shapes = [{ batch: 3, tokens: 12 }];
  const runs = [0, 1].map((rank) => compileRun({ config, model, shapes, rank, profile: builtInProfiles.interpreter }));
  const mailboxes = openInProcessMailboxes(2, runs[0].regions);
  let compared = 0;
  for (const [rank, run] of runs.entries()) {
    const engine = new Interpreter(run, mailboxes[rank]);
    await fillRank(engine, run, start.parameters, start.optimizer);
    const { groups, control } = run.steps[0];
    expect([...(await engine.read(control.name, CONTROL.t * 4, 4))]).toEqual([3]);
    for (const { parameters, state, layout } of groups)
      for (const segment of layout.segments) {
        const { name, rowLength, shardOffset } = segment;
        const own = rowsOf(segment, rank);
        const [first, count] = [own.first * rowLength, own.count * rowLength];
        const stored = checkpoint.optimizers[0].state.get(name)!;
        const parts = [
          [parameters.name, checkpoint.model.get(name)!],
          [state.exp_avg.name, stored.get('exp_avg')],
          [state.exp_avg_sq.name, stored.get('exp_avg_sq')],
        ] as [string, StoredCheckpointTensor][];
        for (const [tensor, of] of parts) {
          const held = await engine.read(tensor, shardOffset * 4, count * 4);
          expect(Buffer.from(held.buffer).equals(Buffer.from(await of.readBytes(first, count))), name).toBe(true);
          compared += count;
        }
      }
  }
  expect(compared).toBe(3 * model.parameters.reduce((sum, { shape }) => sum + shape.reduce((a, b) => a * b, 1), 0));
  await Promise.all([close(), start.close()]);
});

it.each([
  ['ddp', 2],
  [{ kind: 'fsdp' }, 3],
  [{ kind: 'fsdp', shardingStrategy: 'HYBRID_SHARD', deviceMesh: [2, 2] }, 4],
] as const)(
  '5: a full checkpoint holds the state of all parameters, each whole: %j on %i ranks',
  async (strategy, devices) => {
    const checkpoint = { format: 'full' };
    const ranks = await startSavingRanks(folder, { strategy, devices, trainer: { steps: 1 }, checkpoint });
    expect(failures(await ranks.results)).toEqual(Array(devices).fill(null));
    const [{ path }] = await listCheckpoints(join(folder, 'checkpoints'));
    const { checkpoint: stored, close } = await openCheckpointPath(path);
    const { state } = stored.optimizers[0];
    expect([...state.keys()].sort()).toEqual(ranks.runs[0].model.parameters.map(({ name }) => name).sort());
    for (const { name, shape } of ranks.runs[0].model.parameters) {
      const parts = state.get(name) as ReadonlyMap<string, StoredCheckpointTensor>;
      expect([...parts.keys()].sort()).toEqual(['exp_avg', 'exp_avg_sq', 'step']);
      for (const part of ['exp_avg', 'exp_avg_sq']) expect(parts.get(part)?.shape, `${part} of ${name}`).toEqual(shape);
    }
    await close();
  },
);

it.each(['sharded', 'full'] as const)(
  '33: a %s save that one rank alone begins is an error as soon as a peer may be waited for, and leaves nothing',
  async (format) => {
    const strategy = { kind: 'fsdp' };
    const config = parseConfig({ ...referenceRun, strategy, devices: 2, checkpoint: { format } });
    const model = buildModel(config.model, null);
    const shapes = [{ batch: 3, tokens: 12 }];
    for (const alone of [0, 1]) {
      const run = compileRun({ config, model, shapes, rank: alone, profile: builtInProfiles.interpreter });
      const mailbox = openInProcessMailboxes(2, trainerRegions(run), { timeoutMs: 300 })[alone];
      const engine = new Interpreter(run, mailbox);
      await fillRank(engine, run, freshParameters(1));
      const position = { iter: 1, updates: 1, samples: 6, scaler: null };
      const region = run.regions.length + 1;
      const save = saveCheckpoint({
        rank: { run, mailbox, region, read: engineReader(engine) },
        texts: { sizes: region + 1, pieces: region },
        store: folderStore(folder),
        config,
        format,
        description: describeCheckpoint({ run, config }, position),
      });
      await expect(save).rejects.toMatchObject({
        code: 'timeout',
        message: expect.stringContaining(`rank ${1 - alone}`),
      });
      expect(await listed()).toEqual([]);
      // As at the next start.
      const checkpoints = join(folder, 'checkpoints');
      if (existsSync(checkpoints)) await removeCheckpointLeftovers(checkpoints);
      expect(existsSync(checkpoints) ? await readdir(checkpoints) : []).toEqual([]);
    }
  },
);

/** A disk on which a rank's writing takes so long. */
const slowDisk =
  (slow: number, ms: number) =>
  (disk: CheckpointStore, rank: number): CheckpointStore => {
    const late = async <T>(action: () => Promise<T>) => {
      const result = await action();
      if (rank === slow) await sleep(ms);
      return result;
    };
    return {
      ...disk,
      writeFile: (...args) => late(() => disk.writeFile(...args)),
      writeRankFile: (...args) => late(() => disk.writeRankFile(...args)),
      finishFolder: (...args) => late(() => disk.finishFolder(...args)),
    };
  };

describe('32: ranks wait for one that writes slowly with a heartbeat, far longer than for a dead one', () => {
  it.each([
    ['sharded', 0],
    ['sharded', 1],
    ['full', 0],
  ] as const)('%s, rank %i', async (format, slow) => {
    const ranks = await startSavingRanks(
      folder,
      { devices: 2, strategy: { kind: 'fsdp' }, trainer: { steps: 1 }, checkpoint: { format } },
      { timeoutMs: 3000, store: slowDisk(slow, 4500) },
    );
    expect(failures(await ranks.results)).toEqual([null, null]);
    expect(await listed()).toEqual([1]);
  });

  it('and say who is late, once', async () => {
    const mailboxes = openInProcessMailboxes(3, [{ name: 'agreement', bytes: 64, readsPerPublication: 1 }]);
    const said: string[] = [];
    const values = await Promise.all(
      mailboxes.map((mailbox, rank) =>
        waitTogether(mailbox, 0, sleep(rank === 1 ? 200 : 0, rank), {
          beatMs: 5,
          lateBeats: 3,
          onLate: (late) => said.push(`${rank} waits for ${late}`),
        }),
      ),
    );
    expect(values).toEqual([0, 1, 2]);
    expect(said.sort()).toEqual([0, 1, 2].map((rank) => `${rank} waits for 1`));
  });
});

describe('36: an error on one rank stops all and shows its message, where a rank has nothing to write too', () => {
  it.each(['sharded', 'full'])(
    '%s, while saving',
    async (format) => {
      const model = { ...referenceRun.model, ninp: 2, nhead: 1, nhid: 3, nlayers: 1 };
      const broken = (disk: CheckpointStore, rank: number): CheckpointStore => {
        const fail = async () => {
          throw new Error(`rank ${rank} has lost its device`);
        };
        if (format === 'full') return rank === 0 ? { ...disk, writeFile: fail } : disk;
        return rank === 4 ? { ...disk, writeRankFile: fail } : disk;
      };
      const ranks = await startSavingRanks(
        folder,
        { model, devices: 5, strategy: { kind: 'fsdp' }, trainer: { steps: 2 }, checkpoint: { every: 1, format } },
        { store: broken, timeoutMs: 60_000 },
      );
      // Within seconds, where a wait for a peer may take a minute: nobody waits for the rank that is gone.
      const results = await Promise.race([ranks.results, sleep(20_000, null)]);
      expect(results, 'all ranks have stopped').not.toBeNull();
      expect(results).toHaveLength(5);
      for (const failure of failures(results!)) expect(failure).toMatch(/rank \d has lost its device/);
      expect(await listed()).toEqual([]);
    },
    30_000,
  );
});

it('37: another order of collectives on one rank is an error on all before step 0, by name', async () => {
  const backwards = (schedule: Schedule): Schedule => {
    const labels = schedule.steps.filter(({ action }) => action.type === 'publish').map(({ label }) => label);
    const steps = schedule.steps.map((step) =>
      step.action.type === 'publish' ? { ...step, label: labels.pop() as string } : step,
    );
    return { ...schedule, steps };
  };
  const ranks = await startSavingRanks(
    folder,
    { devices: 2, strategy: { kind: 'fsdp' }, trainer: { steps: 2 } },
    {
      adjust: (run, rank) =>
        rank === 0
          ? run
          : { ...run, steps: run.steps.map((step) => ({ ...step, schedule: backwards(step.schedule) })) },
    },
  );
  for (const failure of failures(await ranks.results))
    expect(failure).toMatch(/rank 1 has another order of collectives/);
  expect(ranks.steps()).toEqual([]);
});
