import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { openWeights } from '../../engine/checkpoint/fixtures/read-weights.ts';
import { parseConfig } from '../../engine/config.ts';
import { listCheckpoints } from '../../engine/node/checkpoint-list.ts';
import { verifyCheckpoint } from '../../engine/node/checkpoint-verify.ts';
import { openFileSource } from '../../engine/node/file-bytes.ts';
import { isSameProcess } from '../../engine/node/liveness.ts';
import type { EndEvent, RunEvent, StepEvent } from '../../engine/trainer/events.ts';
import { type LaunchedRun, launchRun } from './supervisor.ts';

/** The worker program itself, through the supervisor: what a run promises, and what is left of one that goes wrong. */

const testdata = fileURLToPath(new URL('../../engine/testdata/', import.meta.url));
const reference = (name: string) => join(testdata, 'demo-transformer', name);
const model = { kind: 'demo-transformer', vocabSize: 97, ninp: 32, nhead: 4, nhid: 64, nlayers: 2 };
const data = { kind: 'batches', path: reference('batches.json') };
/** As small as a model can be: for what does not look at numbers. */
const tiny = { ...model, ninp: 8, nhead: 2, nhid: 8, nlayers: 1 };

let folder: string;
const launched: LaunchedRun[] = [];
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'real-run-'));
});
afterEach(async () => {
  for (const run of launched.splice(0)) {
    run.kill();
    await run.done;
  }
  await rm(folder, { recursive: true, force: true });
});

interface Launch {
  readonly run: LaunchedRun;
  readonly runFolder: string;
  readonly events: RunEvent[];
  readonly weights: string;
  steps(rank: number): StepEvent[];
  /** Resolves when rank 0 has reported this step; fails with the run's own error when it ends before. */
  reached(step: number): Promise<void>;
}

type Config = Record<string, unknown> & { devices?: number };
type Adapter = 'interpreter' | 'swiftshader';

let runs = 0;
function launch(adapter: Adapter, config: Config): Launch {
  const { devices = 2 } = config;
  const runFolder = join(folder, `run-${runs++}`);
  const events: RunEvent[] = [];
  const weights = join(folder, `weights-${runs}.safetensors`);
  const run = launchRun({
    config: parseConfig({ model, data, devices, ...config }),
    runFolder,
    corpusFolder: join(folder, 'corpora'),
    adapterIds: adapter === 'interpreter' ? [adapter] : Array.from({ length: devices }, () => adapter),
    recordTouches: false,
    weightsFile: weights,
    onEvent: (event) => events.push(event),
  });
  launched.push(run);
  const steps = (rank: number) => events.filter((e): e is StepEvent => e.event === 'step' && e.rank === rank);
  const reached = async (step: number) => {
    let end: EndEvent | null = null;
    void run.done.then((said) => {
      end = said;
    });
    while (!steps(0).some((event) => event.step >= step)) {
      if (end) throw new Error(JSON.stringify(end));
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
  };
  return { run, runFolder, events, weights, steps, reached };
}

async function finished(adapter: Adapter, config: Config): Promise<Launch & { end: EndEvent }> {
  const launch_ = launch(adapter, config);
  const end = await launch_.run.done;
  expect(end.error).toBeUndefined();
  expect(end.status).toBe('finished');
  return { ...launch_, end };
}

/** What must be equal to the bit between runs: the numbers of every rank and step, and the weights at the end. */
async function bitsOf({ steps, weights }: Launch, devices: number) {
  const numbers = Array.from({ length: devices }, (_, rank) =>
    steps(rank).map(({ step, loss, lossMean, gradNorm }) => ({ step, loss, lossMean, gradNorm })),
  );
  return { numbers, weights: (await readFile(weights)).toString('base64') };
}

/** Nothing outside the run's folder, no process. */
async function expectNothingLeft({ runFolder }: Launch, traces?: Traces): Promise<void> {
  expect(existsSync(join(runFolder, 'processes.json'))).toBe(false);
  if (!traces) return;
  expect(traces.workers.filter(({ pid, startTime }) => isSameProcess(pid, startTime))).toEqual([]);
  expect(existsSync(traces.sharedFolder)).toBe(false);
}

interface Traces {
  readonly sharedFolder: string;
  readonly workers: readonly { readonly pid: number; readonly startTime: number }[];
}
const tracesOf = async (runFolder: string): Promise<Traces> =>
  JSON.parse(await readFile(join(runFolder, 'processes.json'), 'utf8'));

const adapters: readonly Adapter[] = ['interpreter', 'swiftshader'];

describe.each(adapters)('a run on %s', { timeout: 120_000 }, (adapter) => {
  it.each(['ddp', 'fsdp'])(
    'under %s reports all that PyTorch reported, and saves what it ends with',
    async (strategy) => {
      const init = { from: reference('init.safetensors') };
      const done = await finished(adapter, { init, strategy, trainer: { steps: 10 }, checkpoint: { format: 'full' } });
      expect(done.events[0]).toMatchObject({ event: 'start', params: 49_185, world: 2, adapters: [{}, {}] });
      const expected = JSON.parse(await readFile(reference('expected.json'), 'utf8')).adam_world2;
      for (const rank of [0, 1]) {
        expect(done.steps(rank).map(({ step }) => step)).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        for (const { step, loss, gradNorm, memory } of done.steps(rank)) {
          expect(Math.abs(Number(loss) / expected[step].losses[rank][0] - 1)).toBeLessThan(1e-4);
          expect(Math.abs(Number(gradNorm) / expected[step].grad_norm - 1)).toBeLessThan(1e-4);
          expect(memory.peakBytes).toBe(done.end.peakBytesByRank[rank]);
        }
        expect(done.events.filter((e) => e.event === 'summary' && e.rank === rank)).toHaveLength(1);
      }
      const [start] = done.events;
      expect(start.event === 'start' && start.predicted.peakBytes).toBe(Math.max(...done.end.peakBytesByRank));

      const [checkpoint] = done.end.checkpoints;
      expect(checkpoint).toMatchObject({ format: 'full', step: 10 });
      const path = join(done.runFolder, 'checkpoints', 'step-000010.ckpt');
      expect(await verifyCheckpoint(path)).toEqual({ kind: 'full', digests: true });
      await expectSameTensors(path, done.weights);
      await expectNothingLeft(done);
    },
  );

  it('stopped in the middle ends after the same step on every rank, and has saved that', async () => {
    const going = launch(adapter, { model: tiny, data: await manyBatches(2), trainer: { steps: 5000 } });
    await going.reached(3);
    const traces = await tracesOf(going.runFolder);
    going.run.stop();
    const end = await going.run.done;
    expect([end.status, end.error]).toEqual(['stopped', undefined]);
    const last = [0, 1].map((rank) => going.steps(rank).at(-1)?.step);
    expect(last[0]).toBe(last[1]);
    expect(end.checkpoints.map(({ step }) => step)).toEqual([(last[0] as number) + 1]);
    const [{ path }] = await listCheckpoints(join(going.runFolder, 'checkpoints'));
    await verifyCheckpoint(path);
    await expectNothingLeft(going, traces);
  });

  it('saves every N steps and at the end, each step once', async () => {
    const checkpoint = { every: 2, format: 'full' };
    const done = await finished(adapter, { model: tiny, trainer: { steps: 5 }, checkpoint });
    expect(done.end.checkpoints.map(({ step }) => step)).toEqual([2, 4, 5]);
    const listed = await listCheckpoints(join(done.runFolder, 'checkpoints'));
    expect(listed.map(({ step, sha256 }) => [step, sha256])).toEqual(
      done.end.checkpoints.map(({ step, sha256 }) => [step, sha256]),
    );
    for (const { path } of listed) await verifyCheckpoint(path);
  });

  it('that needs more than its budget fails before its first step, and says what would do', async () => {
    const { run, events, runFolder } = launch(adapter, { memoryBudgetMiB: 0.3, trainer: { steps: 3 } });
    const end = await run.done;
    expect(end.status).toBe('failed');
    expect(end.error).toMatchObject({ code: 'out-of-memory', message: expect.stringContaining('memoryBudgetMiB') });
    expect(events.some(({ event }) => event === 'step')).toBe(false);
    expect(await listCheckpoints(join(runFolder, 'checkpoints'))).toEqual([]);
  });
});

describe('worker processes on one software GPU', { timeout: 180_000 }, () => {
  const fsdp = (settings: object) => ({ kind: 'fsdp', ...settings });
  const rows = { deviceMesh: [2, 2] };
  /** A small model that has units of both kinds, rows that two ranks do not divide, and few kernels to compile. */
  const small = { ...model, vocabSize: 23, ninp: 10, nhead: 2, nhid: 14, nlayers: 1 };

  it.each([
    {
      devices: 2,
      strategies: [
        fsdp({ shardingStrategy: 'NO_SHARD' }),
        fsdp({ shardingStrategy: 'SHARD_GRAD_OP' }),
        fsdp({}),
        fsdp({ cpuOffload: true }),
      ],
    },
    { devices: 3, strategies: [fsdp({})] },
    {
      devices: 4,
      strategies: [
        fsdp({ shardingStrategy: 'HYBRID_SHARD', ...rows }),
        fsdp({ shardingStrategy: 'HYBRID_SHARD_ZERO2', ...rows, cpuOffload: true }),
      ],
    },
  ])('$devices ranks: every strategy ends with the bits of DDP', async ({ devices, strategies }) => {
    const config = {
      model: small,
      devices,
      data: await manyBatches(devices, { rows: 2, columns: 5, entries: 3, words: small.vocabSize }),
      trainer: { steps: 3, gradientClipVal: 1 },
      checkpoint: { atEnd: false },
    };
    const wanted = await bitsOf(await finished('swiftshader', { ...config, strategy: 'ddp' }), devices);
    expect(wanted.numbers.map((steps) => steps.length)).toEqual(Array.from({ length: devices }, () => 3));
    for (const strategy of strategies)
      expect(await bitsOf(await finished('swiftshader', { ...config, strategy }), devices)).toEqual(wanted);
  });

  it('killed with kill -9 in the midst of saving, leaves whole checkpoints only', async () => {
    const checkpoint = { every: 1, format: 'full' };
    const going = launch('swiftshader', { data: await manyBatches(2), trainer: { steps: 5000 }, checkpoint });
    await going.reached(4);
    const traces = await tracesOf(going.runFolder);
    process.kill(traces.workers[0].pid, 'SIGKILL');
    const killedMs = performance.now();
    const end = await going.run.done;
    expect(performance.now() - killedMs).toBeLessThan(15_000);
    expect(end.error).toMatchObject({
      code: 'worker-died',
      rank: 0,
      message: expect.stringMatching(/rank 0.*SIGKILL/s),
    });
    const listed = await listCheckpoints(join(going.runFolder, 'checkpoints'));
    expect(listed.length).toBeGreaterThanOrEqual(3);
    for (const { path } of listed) await verifyCheckpoint(path);
    const whole = new Set(listed.map(({ sha256 }) => sha256));
    for (const { sha256 } of end.checkpoints) expect(whole.has(sha256)).toBe(true);
    await expectNothingLeft(going, traces);
  });

  it('end within seconds when their parent is killed', async () => {
    const config = join(folder, 'run.json');
    await writeFile(
      config,
      JSON.stringify({ model: tiny, data: await manyBatches(2), adapter: 'software', trainer: { steps: 5000 } }),
    );
    const out = join(folder, 'out');
    const project = fileURLToPath(new URL('../../', import.meta.url));
    const args = ['--import', 'tsx', 'server/cli.ts', 'train', config, '--out', out, '--report', '-'];
    const parent = spawn(process.execPath, args, {
      cwd: project,
      env: { ...process.env, STUDIO_DATA: folder },
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    try {
      await new Promise<void>((resolve, reject) => {
        parent.stdout.on('data', (text) => String(text).includes('"event":"step"') && resolve());
        parent.once('exit', (code) => reject(new Error(`train ended with ${code}`)));
      });
      const { workers } = await tracesOf(out);
      expect(workers).toHaveLength(2);
      parent.removeAllListeners('exit');
      parent.kill('SIGKILL');
      const killedMs = performance.now();
      while (workers.some(({ pid, startTime }) => isSameProcess(pid, startTime))) {
        expect(performance.now() - killedMs).toBeLessThan(8000);
        await new Promise((resolve) => setTimeout(resolve, 20));
      }
      for (const { path } of await listCheckpoints(join(out, 'checkpoints'))) await verifyCheckpoint(path);
    } finally {
      parent.kill('SIGKILL');
    }
  });
});

describe('where the weights come from', { timeout: 120_000 }, () => {
  it('.safetensors, .pt and .ckpt of the same weights give the same run', async () => {
    const config = { model, devices: 2, strategy: 'fsdp', trainer: { steps: 3 }, checkpoint: { format: 'full' } };
    const from = (path: string) => finished('interpreter', { ...config, init: { from: path } });
    const safetensors = await from(reference('init.safetensors'));
    const wanted = await bitsOf(safetensors, 2);
    expect(await bitsOf(await from(reference('init.pt')), 2)).toEqual(wanted);
    // Where that run ended, as our own checkpoint and as its weights alone.
    const ckpt = await from(join(safetensors.runFolder, 'checkpoints', 'step-000003.ckpt'));
    const after = await bitsOf(await from(safetensors.weights), 2);
    expect(await bitsOf(ckpt, 2)).toEqual(after);
    expect(after.numbers).not.toEqual(wanted.numbers);
  });
});

describe('what cannot be run fails before its first step', { timeout: 60_000 }, () => {
  const text = async (content: string | Uint8Array) => {
    const path = join(folder, 'text.txt');
    await writeFile(path, content);
    return { data: { kind: 'wikitext2', path, blockSize: 4 }, model: { ...tiny, vocabSize: null } };
  };
  const latin1 = Uint8Array.from([...'call me '].map((c) => c.charCodeAt(0)).concat(0xe9, 0x20, 0x65));
  const cases: [what: string, config: () => Config | Promise<Config>, code: string, said: RegExp][] = [
    [
      'a text that is absent',
      () => ({ data: { kind: 'wikitext2', path: '/nowhere/text.txt' } }),
      'bad-data',
      /no file \/nowhere\/text\.txt/,
    ],
    ['a text that is empty', () => text(''), 'bad-data', /text\.txt is empty/],
    ['a text that is not UTF-8', () => text(latin1), 'bad-data', /text\.txt.*UTF-8.*8/],
    ['a text shorter than a step', () => text('one two'), 'bad-data', /text|samples|blockSize/],
    [
      'a token out of range',
      () => ({ model: { ...tiny, vocabSize: 50 } }),
      'bad-data',
      /entry 0.*rank 0.*\d+.*vocabSize 50|vocabSize/,
    ],
    ['more ranks than the batches have', () => ({ devices: 3 }), 'bad-data', /2 ranks; devices is 3/],
    ['fewer batches than steps', () => ({ trainer: { steps: 21 } }), 'bad-data', /20 entries; trainer\.steps 21/],
    [
      'weights of other shapes',
      () => ({ model: { ...model, nhid: 65 }, init: { from: reference('init.safetensors') } }),
      'bad-data',
      /linear1\.weight is \[64,32\] and should be \[65,32\].*linear2\.weight/s,
    ],
    [
      'weights of another model',
      () => ({ model: { ...model, nlayers: 3 }, init: { from: reference('init.pt') } }),
      'bad-data',
      /missing.*encoder\.layers\.2/s,
    ],
    [
      'a pickle that asks for a program',
      () => ({ init: { from: join(testdata, 'malicious.pt') } }),
      'refused-global',
      /posix\.system/,
    ],
    ['weights that are absent', () => ({ init: { from: '/nowhere/w.pt' } }), 'not-found', /\/nowhere\/w\.pt/],
  ];
  it.each(cases)('%s', async (_, config, code, said) => {
    const made = launch('interpreter', { model: tiny, ...(await config()) });
    const end = await made.run.done;
    expect(end.status).toBe('failed');
    expect(end.error?.message).toMatch(said);
    expect(end.error?.code).toBe(code);
    expect(made.events.filter(({ event }) => event === 'step')).toEqual([]);
    expect((await readdir(made.runFolder)).sort()).toEqual(['logs']);
  });
});

/** Batches for as many steps as a test may need, in which every rank and step has tokens of its own. */
async function manyBatches(ranks: number, { rows = 1, columns = 4, entries = 5000, words = 97 } = {}) {
  const path = join(folder, `batches-${ranks}.json`);
  const token = (entry: number, rank: number, i: number) => (entry * 5 + rank * 11 + i * i + 1) % words;
  const batch = (entry: number, rank: number, shift: number) =>
    Array.from({ length: rows }, (_, y) =>
      Array.from({ length: columns }, (_, x) => token(entry, rank, y * columns + x + shift)),
    );
  const all = Array.from({ length: entries }, (_, entry) =>
    Array.from({ length: ranks }, (_, rank) => ({ input: batch(entry, rank, 0), target: batch(entry, rank, 1) })),
  );
  await writeFile(path, JSON.stringify(all));
  return { kind: 'batches', path };
}

/** Names, shapes and bits. */
async function expectSameTensors(checkpointPath: string, weightsPath: string): Promise<void> {
  const files = await Promise.all([checkpointPath, weightsPath].map(openFileSource));
  try {
    const [saved, weights] = await Promise.all(files.map((file) => openWeights(file)));
    expect([...saved.names].sort()).toEqual([...weights.names].sort());
    for (const name of weights.names) {
      expect(saved.shape(name), name).toEqual(weights.shape(name));
      const [a, b] = await Promise.all([saved.readFloat32(name), weights.readFloat32(name)]);
      expect(Buffer.from(a.buffer).equals(Buffer.from(b.buffer)), name).toBe(true);
    }
  } finally {
    for (const file of files) await file.close();
  }
}
