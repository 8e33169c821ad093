import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { elementCount } from '../../engine/checkpoint/dtype.ts';
import { isStoredTensor, type StoredCheckpointTensor } from '../../engine/checkpoint/stored-checkpoint.ts';
import { parseConfig } from '../../engine/config.ts';
import { listCheckpoints } from '../../engine/node/checkpoint-list.ts';
import { openCheckpointPath } from '../../engine/node/checkpoint-path.ts';
import { verifyCheckpoint } from '../../engine/node/checkpoint-verify.ts';
import { fromWire, type RunEvent } from '../../engine/trainer/events.ts';
import { openTestStudio } from '../fixtures/test-studio.ts';
import { launchRun } from './supervisor.ts';

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'save-and-kill-'));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

const STEPS = 400;

const tiny = { kind: 'demo-transformer', vocabSize: 10, ninp: 8, nhead: 2, nhid: 8, nlayers: 1 };

function batchesText(): string {
  const batch = (n: number) => ({ input: [n % 7, 2, 3, 9], target: [2, 3, n % 7, 9] });
  return JSON.stringify(Array.from({ length: STEPS }, (_, i) => [batch(i), batch(i + 3)]));
}

/** Two ranks in processes of their own, on the bundled software GPU unless the input says the interpreter. */
async function train(input: object, runFolder: string, adapterIds = ['swiftshader', 'swiftshader']) {
  const path = join(folder, 'batches.json');
  await writeFile(path, batchesText());
  await mkdir(runFolder, { recursive: true });
  const events: RunEvent[] = [];
  const run = launchRun({
    config: parseConfig({
      model: tiny,
      data: { kind: 'batches', path },
      ...input,
    }),
    runFolder,
    corpusFolder: folder,
    adapterIds,
    recordTouches: false,
    weightsFile: null,
    onEvent: (event) => events.push(event),
  });
  return { run, events };
}

function lossesOf(events: readonly RunEvent[]): Map<string, number> {
  return new Map(events.flatMap((e) => (e.event === 'step' ? [[`${e.step} ${e.rank}`, fromWire(e.loss)]] : [])));
}

/** The bytes of every tensor of a checkpoint, parameters and optimizer state, in hexadecimal by name. */
async function contentOf(path: string): Promise<Map<string, string>> {
  const { checkpoint, close } = await openCheckpointPath(path);
  const content = new Map<string, string>();
  const add = async (name: string, { shape, readBytes }: StoredCheckpointTensor) => {
    content.set(name, Buffer.from(await readBytes(0, elementCount(shape))).toString('hex'));
  };
  for (const [name, tensor] of checkpoint.model) await add(name, tensor);
  for (const { state } of checkpoint.optimizers)
    for (const [id, parts] of state)
      for (const [part, value] of parts)
        if (isStoredTensor(value)) await add(`${id} ${part}`, value);
        else content.set(`${id} ${part}`, String(value));
  await close();
  return content;
}

describe('on a software GPU, rank by rank in its own process', { timeout: 180_000 }, () => {
  it.each(['ddp', 'fsdp', 'fsdp_cpu_offload'])(
    '%s: a run that was interrupted goes on with the same bits',
    async (strategy) => {
      const whole = await train({ strategy, trainer: { steps: 6 }, checkpoint: { every: 3 } }, join(folder, 'whole'));
      const end = await whole.run.done;
      expect(end.error).toBeUndefined();
      const resume = end.checkpoints[0].path;
      const rest = await train({ strategy, trainer: { steps: 6 }, checkpoint: { resume } }, join(folder, 'rest'));
      expect((await rest.run.done).error).toBeUndefined();
      const wanted = lossesOf(whole.events);
      const resumed = lossesOf(rest.events);
      expect([...resumed.keys()].sort()).toEqual(['3 0', '3 1', '4 0', '4 1', '5 0', '5 1']);
      for (const [key, loss] of resumed) expect(loss, key).toBe(wanted.get(key));
      // Ranks of other processes wrote the same as they would have without the interruption. Files as a whole differ by
      // what the config says and by the name of the save.
      const ends = [end.checkpoints[1].path, (await rest.run.done).checkpoints[0].path];
      const [a, b] = [await contentOf(ends[0]), await contentOf(ends[1])];
      expect(a.size).toBeGreaterThan(3 * 20);
      expect(a).toEqual(b);
    },
  );
});

describe('kill -9 at a random moment of a run that saves at every step', { timeout: 180_000 }, () => {
  /** Fixed seed: the moments are the same each time, the machine is not. */
  let seed = 12345;
  const random = () => {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    return seed / 2 ** 32;
  };

  it.each(['full', 'sharded'])(
    '%s: what is listed verifies, and the next start goes on and leaves nothing temporary',
    async (format) => {
      const runFolder = join(folder, format);
      const checkpoints = join(runFolder, 'checkpoints');
      let done = 0;
      for (let round = 0; round < 3; round++) {
        const resume = done === 0 ? null : (await listCheckpoints(checkpoints)).at(-1)!.path;
        const config = { devices: 2, trainer: { steps: STEPS }, checkpoint: { every: 1, keepLast: 3, format, resume } };
        const { run, events } = await train(config, runFolder, ['interpreter']);
        const ended = run.done.then(() => true);
        while (!events.some(({ event }) => event === 'checkpoint') && !(await Promise.race([ended, sleep(5, false)])));
        await sleep(random() * 300);
        run.kill();
        expect((await run.done).error).toBeUndefined();
        const listed = await listCheckpoints(checkpoints);
        expect(listed.length).toBeGreaterThan(0);
        expect(listed.at(-1)!.step).toBeGreaterThan(done);
        for (const { path } of listed) expect((await verifyCheckpoint(path)).digests).toBe(true);
        done = listed.at(-1)!.step;
      }
      const resume = (await listCheckpoints(checkpoints)).at(-1)!.path;
      const config = {
        devices: 2,
        trainer: { steps: done + 1 },
        checkpoint: { every: 1, keepLast: 3, format, resume },
      };
      const { run } = await train(config, runFolder, ['interpreter']);
      expect(await run.done).toMatchObject({ status: 'finished', checkpoints: [{ step: done + 1 }] });
      expect(await listCheckpoints(checkpoints)).toHaveLength(3);
      expect(await readdir(checkpoints)).toHaveLength(6);
    },
  );

  it('29: of one rank alone, with a process for each: the others end, what is listed verifies, the next start goes on', async () => {
    const runFolder = join(folder, 'one-rank');
    const checkpoints = join(runFolder, 'checkpoints');
    const config = (resume: string | null, steps = STEPS) => ({
      devices: 2,
      trainer: { steps },
      checkpoint: { every: 1, keepLast: 3, resume },
    });
    let done = 0;
    for (const rank of [1, 0]) {
      const resume = (await listCheckpoints(checkpoints)).at(-1)?.path ?? null;
      const { run, events } = await train(config(resume), runFolder);
      const ended = run.done.then(() => true);
      while (!events.some(({ event }) => event === 'checkpoint') && !(await Promise.race([ended, sleep(5, false)])));
      await sleep(random() * 300);
      const { workers } = JSON.parse(await readFile(join(runFolder, 'processes.json'), 'utf8'));
      process.kill(workers[rank].pid, 'SIGKILL');
      expect((await run.done).error).toMatchObject({ code: 'worker-died', rank });
      done = await expectWhole(checkpoints, done);
    }
    const last = (await listCheckpoints(checkpoints)).at(-1)!;
    const { run } = await train(config(last.path, done + 1), runFolder);
    expect(await run.done).toMatchObject({ status: 'finished', checkpoints: [{ step: done + 1 }] });
    expect(await readdir(checkpoints)).toHaveLength(6);
  });

  it('29: of the server: the ranks end, and a new server lists whole checkpoints alone, which a run resumes from', async () => {
    const dataFolder = join(folder, 'studio');
    await mkdir(join(dataFolder, 'files'), { recursive: true });
    await writeFile(join(dataFolder, 'files', 'batches.json'), batchesText());
    const program = fileURLToPath(new URL('../fixtures/studio-process.ts', import.meta.url));
    const server = spawn(process.execPath, ['--import', 'tsx', program, dataFolder, 'real'], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const [port] = (await once(server.stdout, 'data')) as [Buffer];
    const config = {
      name: 'killed',
      model: tiny,
      data: { kind: 'batches', path: 'files/batches.json' },
      devices: 2,
      trainer: { steps: STEPS },
      checkpoint: { every: 1, keepLast: 3 },
    };
    const response = await fetch(`http://127.0.0.1:${String(port).trim()}/api/v1/runs`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ config }),
    });
    const { id } = (await response.json()) as { id: string };
    const checkpoints = join(dataFolder, 'runs', id, 'checkpoints');
    while ((await listCheckpoints(checkpoints)).length < 2) await sleep(20);
    await sleep(random() * 300);
    server.kill('SIGKILL');
    await once(server, 'exit');

    const { api, close } = await openTestStudio({ dataFolder, workers: {} });
    try {
      const run = await api.until(id, 'failed');
      const done = await expectWhole(checkpoints, 1);
      const listed = await listCheckpoints(checkpoints);
      expect(run.checkpoints.map(({ step }) => step).sort()).toEqual(listed.map(({ step }) => step).sort());
      expect(await readdir(checkpoints)).toHaveLength(2 * listed.length);
      const next = await api.create({
        ...config,
        // All ranks in one process: what goes on is the checkpoint.
        adapter: 'interpreter',
        trainer: { steps: done + 1 },
        checkpoint: { resume: 'latest', atEnd: false },
      });
      expect(await api.until(next.id, 'finished', 'failed')).toMatchObject({ state: 'finished' });
    } finally {
      await close();
    }
  });
});

/** All that is listed verifies, and has gone on beyond `done` steps. Returns the last one's. */
async function expectWhole(checkpoints: string, done: number): Promise<number> {
  const listed = await listCheckpoints(checkpoints);
  for (const { path } of listed) expect((await verifyCheckpoint(path)).digests).toBe(true);
  expect(listed.at(-1)!.step).toBeGreaterThan(done);
  return listed.at(-1)!.step;
}
