import { type ChildProcess, spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { build } from 'esbuild';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { parseConfig } from '../../engine/config.ts';
import { SAVING_MARK } from '../../engine/node/checkpoint-folder.ts';
import { listCheckpoints } from '../../engine/node/checkpoint-list.ts';
import { verifyCheckpoint } from '../../engine/node/checkpoint-verify.ts';
import { DIGEST_SUFFIX, TEMPORARY_MARK } from '../../engine/node/file-bytes.ts';
import { contentOf } from '../../engine/node/fixtures/content-of.ts';
import { trainRun } from '../../engine/node/fixtures/train-run.ts';
import { isSameProcess } from '../../engine/node/liveness.ts';
import { seededRandom } from '../../engine/ops/kernel-case.ts';
import type { RunEvent } from '../../engine/trainer/events.ts';
import type { Run } from '../contract.ts';
import { BEGIN, type Halt, haltFile, operationsFile } from './fixtures/halt.ts';
import type { Traces } from './run-folder.ts';
import { launchRun } from './supervisor.ts';

/** Of each kind: of a rank, of all ranks, of the server. `npm run test:kills` makes 50. */
const KILLS = Number(process.env.KILLS ?? 10);
const STEPS = 1000;
/** After the operation at which a kill is due that does not hold it up; a save takes about this long. */
const LONGEST_MS = 60;
const FORMATS = ['full', 'sharded'] as const;
type Format = (typeof FORMATS)[number];

let folder: string;
let programs: string;
const program = (name: string) => join(programs, `${name}.mjs`);

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'kills-'));
  const cache = fileURLToPath(new URL('../../node_modules/.cache/shard-studio/', import.meta.url));
  await mkdir(cache, { recursive: true });
  programs = await mkdtemp(join(cache, 'kills-'));
  // One file each, which starts in less than a second, where their sources take two.
  await build({
    entryPoints: ['./fixtures/halting-worker.ts', '../fixtures/studio-process.ts'].map((path) =>
      fileURLToPath(new URL(path, import.meta.url)),
    ),
    bundle: true,
    platform: 'node',
    format: 'esm',
    packages: 'external',
    outdir: programs,
    outExtension: { '.js': '.mjs' },
    entryNames: '[name]',
    plugins: [
      {
        // The files that a source names beside itself stay where they are.
        name: 'own-url',
        setup: ({ onLoad }) =>
          onLoad({ filter: /\/(engine|server)\/.*\.ts$/ }, async ({ path }) => ({
            contents: (await readFile(path, 'utf8')).replaceAll(
              'import.meta.url',
              JSON.stringify(pathToFileURL(path).href),
            ),
            loader: 'ts',
          })),
      },
    ],
  });
  const batch = (n: number) => ({ input: [n % 7, 2, 3, 9], target: [2, 3, n % 7, 9] });
  const batches = JSON.stringify(Array.from({ length: STEPS }, (_, i) => [batch(i), batch(i + 3)]));
  await mkdir(join(folder, 'studio', 'files'), { recursive: true });
  await writeFile(join(folder, 'batches.json'), batches);
  await writeFile(join(folder, 'studio', 'files', 'batches.json'), batches);
});
afterAll(async () => {
  await rm(folder, { recursive: true, force: true });
  await rm(programs, { recursive: true, force: true });
});

const configOf = (path: string, steps: number, checkpoint: object) => ({
  name: 'killed',
  model: { kind: 'demo-transformer', vocabSize: 10, ninp: 8, nhead: 2, nhid: 8, nlayers: 1 },
  data: { kind: 'batches', path },
  devices: 2,
  trainer: { steps },
  checkpoint: { every: 1, ...checkpoint },
});

/** Two ranks, each in its own process, from the newest checkpoint of the folder on. */
async function launch(runFolder: string, format: Format, steps = STEPS) {
  const events: RunEvent[] = [];
  const resume = (await listCheckpoints(join(runFolder, 'checkpoints'))).at(-1)?.path ?? null;
  await mkdir(runFolder, { recursive: true });
  forgetOperations();
  const run = launchRun({
    config: parseConfig(configOf(join(folder, 'batches.json'), steps, { keepLast: 3, format, resume })),
    runFolder,
    corpusFolder: folder,
    adapterIds: ['swiftshader', 'swiftshader'],
    recordTouches: false,
    weightsFile: null,
    onEvent: (event) => events.push(event),
    entry: program('halting-worker'),
    patience: { peerMs: 300, killMs: 300 },
  });
  return { run, events };
}

/** A kill: at which file operation of rank 0, held up before it or so many milliseconds after it. */
interface Moment extends Halt {
  readonly afterMs: number;
}

/** Of each save that rank 0 has begun in this life, in order. */
function operations(): string[][] {
  const saves: string[][] = [];
  const text = existsSync(operationsFile(programs)) ? readFileSync(operationsFile(programs), 'utf8') : '';
  for (const line of text.split('\n').slice(0, -1)) {
    if (line === BEGIN) saves.push([]);
    saves.at(-1)?.push(line);
  }
  return saves;
}
const forgetOperations = (): void => rmSync(operationsFile(programs), { force: true });
const setHalt = (halt: Halt): void => writeFileSync(haltFile(programs), JSON.stringify(halt));
const NOWHERE: Halt = { save: 0, operation: 0, waits: false };
const namesIn = (path: string): Promise<string[]> => readdir(path).catch(() => []);

/** What is on disk of a save when it is cut: the phases that each kind of kill must have met. */
const CUTS = ['nothing', 'a part', 'all but the names', 'all but the listing'] as const;
type Cut = (typeof CUTS)[number];
const isTemporary = (name: string) => name.includes(SAVING_MARK) || name.includes(TEMPORARY_MARK);

function cutOf(names: readonly string[]): Cut {
  const digests = names.filter((name) => name.includes(DIGEST_SUFFIX));
  const isUnlisted = (name: string) =>
    !isTemporary(name) && !digests.includes(name) && !digests.includes(`${name}${DIGEST_SUFFIX}`);
  // Of one that keepLast was just deleting, too: what is not listed is no checkpoint.
  if (names.some(isUnlisted)) return 'all but the listing';
  if (digests.some(isTemporary)) return 'all but the names';
  return names.some(isTemporary) ? 'a part' : 'nothing';
}

/**
 * The moments of all kills, the same for one seed. Every second one holds rank 0 up before one of its file operations, in
 * each phase of a save by turns; the others come by chance some milliseconds after any of them, while it goes on.
 */
function momentsOf(seed: number, bySave: Readonly<Record<Format, readonly string[]>>) {
  const random = seededRandom(seed);
  const among = (first: number, end: number) => first + Math.floor(random() * (end - first));
  return Array.from({ length: KILLS }, (_, kill) => {
    const format = FORMATS[among(0, FORMATS.length)];
    const save = bySave[format];
    const is = (what: RegExp) => save.findIndex((operation) => what.test(operation)) + 1;
    // Before the first of a phase's operations nothing of it is on disk yet.
    const bounds = [1, is(/^(create|make) step-.*\.(part|saving)-/) + 1];
    bounds.push(
      is(/^create .*\.sha256\.part-/) + 1,
      is(/^rename to step-\d+(\.ckpt)?$/) + 1,
      is(/^rename to .*\.sha256$/) + 1,
    );
    const waits = kill % 2 === 0;
    const phase = (kill / 2) % CUTS.length;
    const operation = waits ? among(bounds[phase], bounds[phase + 1]) : among(1, save.length + 1);
    // Of the first save of its life, or of the second.
    const moment: Moment = { save: among(1, 3), operation, waits, afterMs: waits ? 0 : random() * LONGEST_MS };
    return { kill, format, moment, victim: among(0, 2) };
  });
}

/** Waits until rank 0 is at the operation of the moment; says what that is. Fails when the run ends before. */
async function reach({ save, operation, waits, afterMs }: Moment, ended: () => string | null): Promise<string> {
  for (;;) {
    const begun = operations();
    const met = begun[save - 1]?.[operation - 1];
    // The saves before this one may have been shorter than the one that was measured: nothing is deleted in them.
    if (met !== undefined || begun.length > save) {
      await sleep(afterMs);
      const where = `file operation ${operation} of its save ${save} (${met ?? 'over'})`;
      return waits ? `before ${where}` : `${afterMs.toFixed(1)} ms after it began ${where}`;
    }
    const end = ended();
    if (end !== null) throw new Error(`the run ended before operation ${operation} of save ${save}: ${end}`);
    await sleep(1);
  }
}

/** The file operations of rank 0 in one save, as they come: measured, since what a save does is not this test's to know. */
async function operationsOfSave(format: Format): Promise<string[]> {
  setHalt(NOWHERE);
  // Four of them, of which the last two delete an older one too. The first also makes the folder's names known.
  const { run } = await launch(join(folder, `probe ${format}`), format, 4);
  expect((await run.done).error).toBeUndefined();
  const saves = operations();
  expect(saves).toHaveLength(4);
  return saves[3];
}

let bySave: Record<Format, string[]>;
beforeAll(async () => {
  bySave = { full: await operationsOfSave('full'), sharded: await operationsOfSave('sharded') };
});

/** Of all that a checkpoint holds, by name, whatever its format's order. */
async function digestOf(path: string): Promise<string> {
  const byName = [...(await contentOf(path))].toSorted(([a], [b]) => (a < b ? -1 : 1));
  return createHash('sha256').update(JSON.stringify(byName)).digest('hex');
}

/** What the checkpoints after each step must hold: that of a run which nobody ended. */
const wanted = new Map<number, string>();
const seen: { readonly step: number; readonly content: string; readonly where: string }[] = [];

async function compareWithUnbroken(): Promise<void> {
  const last = Math.max(...seen.map(({ step }) => step));
  if (!wanted.has(last)) {
    const runFolder = await mkdtemp(join(folder, 'unbroken-'));
    const input = configOf(join(folder, 'batches.json'), last, { format: 'full' });
    for (const path of (await trainRun(runFolder, input)).checkpoints)
      wanted.set((await listCheckpoints(dirname(path))).find((each) => each.path === path)!.step, await digestOf(path));
  }
  for (const { step, content, where } of seen.splice(0)) expect(content, where).toBe(wanted.get(step));
}

/** Every checkpoint of the folder verifies, and what it holds is kept for the comparison. */
async function expectWhole(checkpoints: string, where: string) {
  const listed = await listCheckpoints(checkpoints);
  for (const { path, step } of listed) {
    expect((await verifyCheckpoint(path)).digests, where).toBe(true);
    seen.push({ step, content: await digestOf(path), where: `${basename(path)}, ${where}` });
  }
  return listed;
}

class Tally {
  readonly #cuts = new Map<Cut, number>(CUTS.map((cut) => [cut, 0]));
  readonly #lines: string[] = [];

  add(cut: Cut, line: string): void {
    this.#cuts.set(cut, this.#cuts.get(cut)! + 1);
    this.#lines.push(`${line}: ${cut} on disk`);
  }

  /** The moments met every phase. */
  tell(what: string): void {
    const counts = [...this.#cuts].map(([cut, count]) => `${cut} ${count}`).join(', ');
    console.info(
      [...(process.env.KILLS ? this.#lines : []), `${KILLS} kills of ${what}; on disk of a save: ${counts}`].join('\n'),
    );
    for (const [cut, count] of this.#cuts) expect(count, `kills with ${cut} on disk`).toBeGreaterThan(0);
  }
}

describe('29, 31: kill -9 at random moments of a run that saves after every step, a process for each rank', {
  timeout: KILLS * 60_000,
}, () => {
  it.each([
    ['one rank', 1],
    ['all ranks', 2],
  ] as const)(
    'of %s: what was listed is whole and the bits of a run that nobody ended; the next start leaves nothing else',
    async (what, seed) => {
      const tally = new Tally();
      const runFolder = join(folder, what);
      const checkpoints = join(runFolder, 'checkpoints');
      let leftBehind: string[] = [];
      let done = 0;
      for (const { kill, format, moment, victim } of momentsOf(seed, bySave)) {
        const victims = what === 'one rank' ? [victim] : [0, 1];
        setHalt(moment);
        const { run, events } = await launch(runFolder, format);
        let end: string | null = null;
        void run.done.then(({ error }) => (end = error?.message ?? 'without an error'));
        const at = await reach(moment, () => end);
        const where = `seed ${seed}, kill ${kill}: ${format}, rank ${victims} killed when rank 0 was ${at}`;
        // What the kill before left was gone before the first save of this life.
        const during = await namesIn(checkpoints);
        for (const name of leftBehind) expect(during, where).not.toContain(name);

        const { workers, sharedFolder } = JSON.parse(
          await readFile(join(runFolder, 'processes.json'), 'utf8'),
        ) as Traces;
        for (const rank of victims) process.kill(workers[rank].pid, 'SIGKILL');
        const { error } = await run.done;
        expect(error, where).toMatchObject({ code: 'worker-died' });
        for (const { pid, startTime } of workers) expect(isSameProcess(pid, startTime), where).toBe(false);
        expect(existsSync(sharedFolder), where).toBe(false);

        const listed = await expectWhole(checkpoints, where);
        const told = events.findLast((event) => event.event === 'checkpoint');
        if (told)
          expect(
            listed.map(({ path }) => path),
            where,
          ).toContain(told.path);
        expect(listed.at(-1)?.step ?? 0, where).toBeGreaterThanOrEqual(done);
        done = listed.at(-1)?.step ?? 0;
        const names = await namesIn(checkpoints);
        leftBehind = names.filter(isTemporary);
        tally.add(cutOf(names), where);
      }
      tally.tell(`${what}, seed ${seed}`);
      await compareWithUnbroken();

      setHalt(NOWHERE);
      const { run } = await launch(runFolder, 'full', done + 1);
      expect(await run.done).toMatchObject({ status: 'finished', checkpoints: [{ step: done + 1 }] });
      expect(await readdir(checkpoints)).toHaveLength(6);
      expect((await readdir(runFolder)).sort()).toEqual(['checkpoints', 'logs']);
    },
  );

  it('of the server: the next one lists what is whole, resumes from it, and leaves nothing else', async () => {
    const seed = 3;
    const tally = new Tally();
    const dataFolder = join(folder, 'studio');
    const runs: string[] = [];
    let child: ChildProcess | null = null;
    let shared = '';
    const openStudio = async () => {
      const started = spawn(process.execPath, [program('studio-process'), dataFolder, program('halting-worker')], {
        stdio: ['ignore', 'pipe', 'inherit'],
      });
      child = started;
      const [port] = (await once(started.stdout, 'data')) as [Buffer];
      return async <T>(path: string, body?: unknown) => {
        const headers = { 'content-type': 'application/json' };
        const init = body === undefined ? {} : { method: 'POST', headers, body: JSON.stringify(body) };
        return (await (await fetch(`http://127.0.0.1:${String(port).trim()}/api/v1${path}`, init)).json()) as T;
      };
    };
    /** What a new server says of the run that the one before had, and what it has left of it on disk. */
    const expectRecovered = async (run: Run, where: string) => {
      const checkpoints = join(dataFolder, 'runs', run.id, 'checkpoints');
      expect(run, where).toMatchObject({ state: 'failed', error: { code: 'worker-died' } });
      expect(existsSync(shared), where).toBe(false);
      const listed = await expectWhole(checkpoints, where);
      expect(run.checkpoints.map(({ name }) => name).sort(), where).toEqual(
        listed.map(({ path }) => basename(path)).sort(),
      );
      const names = await namesIn(checkpoints);
      expect(names.length, where).toBe(2 * listed.length);
      expect(
        (await readdir(dirname(checkpoints))).filter((name) => !['checkpoints', 'logs', 'run.json'].includes(name)),
      ).toEqual([]);
    };
    let where = '';
    try {
      for (const { kill, format, moment } of momentsOf(seed, bySave)) {
        setHalt(moment);
        forgetOperations();
        const ask = await openStudio();
        if (kill > 0) await expectRecovered(await ask<Run>(`/runs/${runs.at(-1)}`), where);
        const hasAny = (
          await Promise.all(runs.map((id) => listCheckpoints(join(dataFolder, 'runs', id, 'checkpoints'))))
        ).some((listed) => listed.length > 0);
        const checkpoint = { keepLast: 3, format, resume: hasAny ? 'latest' : null };
        const { id } = await ask<Run>('/runs', { config: configOf('files/batches.json', STEPS, checkpoint) });
        runs.push(id);
        const at = await reach(moment, () => (child!.exitCode === null ? null : 'the server has gone'));
        const { workers, sharedFolder } = JSON.parse(
          await readFile(join(dataFolder, 'runs', id, 'processes.json'), 'utf8'),
        ) as Traces;
        const exited = once(child!, 'exit');
        child!.kill('SIGKILL');
        await exited;
        // Its workers hear of it: nobody is left to write when what they left is looked at.
        for (const { pid, startTime } of workers) while (isSameProcess(pid, startTime)) await sleep(2);
        where = `seed ${seed}, kill ${kill}: ${format}, the server killed when rank 0 was ${at}`;
        tally.add(cutOf(await namesIn(join(dataFolder, 'runs', id, 'checkpoints'))), where);
        shared = sharedFolder;
      }
      const ask = await openStudio();
      await expectRecovered(await ask<Run>(`/runs/${runs.at(-1)}`), where);
      tally.tell(`the server, seed ${seed}`);
      await compareWithUnbroken();
    } finally {
      (child as ChildProcess | null)?.kill('SIGKILL');
    }
  });
});
