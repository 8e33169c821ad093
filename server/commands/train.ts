import { once } from 'node:events';
import { createWriteStream, existsSync } from 'node:fs';
import { mkdir, readdir, stat, writeFile } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import type { ExperimentConfig } from '../../engine/config.ts';
import { StudioError } from '../../engine/errors.ts';
import { discoverAdapters } from '../../engine/node/adapters.ts';
import { naming } from '../../engine/node/file-bytes.ts';
import { isSameProcess } from '../../engine/node/liveness.ts';
import { type Lock, tryLock } from '../../engine/node/lock-file.ts';
import { listTraces, machineClockMs, readTraces } from '../../engine/node/trace-files.ts';
import { chromeTrace } from '../../engine/trainer/chrome-trace.ts';
import type { RunEvent } from '../../engine/trainer/events.ts';
import { withLatestCheckpoint } from '../runs/latest-checkpoint.ts';
import { INTERPRETER, placeRun } from '../scheduler/slots.ts';
import { readTraces as readProcesses } from '../workers/run-folder.ts';
import { launchRun } from '../workers/supervisor.ts';
import { readConfigFile } from './config-file.ts';
import { whenOutputBreaks } from './output.ts';
import { Progress } from './progress.ts';
import { exitCodeOfError, UsageError } from './usage.ts';

/** `train CONFIG …`: runs it here and now, without the studio's database. Returns the exit code. */
export async function train(args: string[]): Promise<number> {
  const { values, positionals } = parseArgs({
    args,
    allowPositionals: true,
    options: {
      report: { type: 'string' },
      out: { type: 'string' },
      weights: { type: 'string' },
      record: { type: 'boolean', default: false },
      trace: { type: 'string' },
      'trace-step': { type: 'string' },
      summary: { type: 'boolean', default: false },
    },
  });
  if (positionals.length !== 1) throw new UsageError('train takes one CONFIG file');
  if (values.out === '') throw new UsageError('--out: name a folder, or leave it out');
  const traceStep = traceStepOf(values.trace, values['trace-step']);
  const written = await readConfigFile(positionals[0]);
  const dataFolder = resolve(process.env.STUDIO_DATA || 'data');
  const config = await resolveLatest(written, dataFolder, values.out);
  const adapters = config.adapter === INTERPRETER ? [] : await discoverAdapters();
  const { adapterIds } = placeRun(config, adapters);
  await checkWeightsPath(values.weights);
  const runFolder = await makeRunFolder(dataFolder, config.name, values.out);
  const lock = await lockRunFolder(runFolder);
  try {
    return await trainIn(runFolder, { config, dataFolder, adapterIds, traceStep, values });
  } finally {
    await lock.release();
  }
}

interface Training {
  readonly config: ExperimentConfig;
  readonly dataFolder: string;
  readonly adapterIds: readonly string[];
  readonly traceStep: number | null;
  readonly values: {
    readonly report?: string;
    readonly weights?: string;
    readonly record: boolean;
    readonly trace?: string;
    readonly summary: boolean;
  };
}

async function trainIn(
  runFolder: string,
  { config, dataFolder, adapterIds, traceStep, values }: Training,
): Promise<number> {
  const report = await openReport(values.report);
  const progress = new Progress(process.stderr, { steps: config.trainer.steps, summaries: values.summary });
  const show = (event: RunEvent) => {
    report.write(event);
    progress.show(event);
  };
  const startedMs = machineClockMs();
  const run = launchRun({
    config,
    runFolder,
    corpusFolder: join(dataFolder, 'corpora'),
    adapterIds,
    recordTouches: values.record,
    weightsFile: values.weights === undefined ? null : resolve(values.weights),
    ...(values.trace === undefined ? {} : { trace: { step: traceStep } }),
    onEvent: show,
  });
  const interrupt = interrupter(run);
  // Whoever asks a program to end, a batch system's time limit say, gets a checkpoint; a person at a terminal what is configured.
  const terminate = () => {
    run.save();
    interrupt();
  };
  process.on('SIGINT', interrupt).on('SIGTERM', terminate);
  // Nobody reads the report, or what is printed, any more: what was asked for cannot be given.
  let outputBroke = false;
  whenOutputBreaks(() => {
    outputBroke = true;
    run.stop();
  });
  const end = await run.done;
  process.off('SIGINT', interrupt).off('SIGTERM', terminate);
  if (outputBroke) return 1;
  show(end);
  if (end.checkpoints.length) process.stderr.write(`in ${runFolder}\n`);
  await report.close();
  if (values.trace !== undefined && !end.error)
    await writeTrace(values.trace, { runFolder, world: config.devices, startedMs });
  if (end.error) return exitCodeOfError(end.error.code);
  return end.status === 'finished' ? 0 : 1;
}

/** Where the weights go at the end has to be there now: nobody wants to hear it after the last step. */
async function checkWeightsPath(file: string | undefined): Promise<void> {
  if (file === undefined) return;
  const isFolder = (path: string) =>
    stat(path).then(
      (info) => info.isDirectory(),
      () => false,
    );
  const folder = dirname(resolve(file));
  if (!(await isFolder(folder)))
    throw new StudioError(
      'invalid-config',
      `--weights ${file}: there is no folder ${folder}. Make it, or name another.`,
    );
  if (await isFolder(resolve(file)))
    throw new StudioError('invalid-config', `--weights ${file}: that is a folder. Name a file in it.`);
  if (existsSync(resolve(file)))
    throw new StudioError(
      'invalid-config',
      `--weights ${file}: a file is there, which would be lost. Name another, or delete it.`,
    );
}

/** The number of --trace-step; null leaves the choice to the run. Throws UsageError. */
function traceStepOf(file: string | undefined, text: string | undefined): number | null {
  if (text === undefined) return null;
  if (file === undefined) throw new UsageError('--trace-step goes with --trace FILE');
  if (!/^\d{1,8}$/.test(text)) throw new UsageError(`--trace-step ${text}: a step is a whole number, counted from 0`);
  return Number(text);
}

/** Writes the traces of all ranks as one Chrome trace, and says where. */
async function writeTrace(
  file: string,
  { runFolder, world, startedMs }: { runFolder: string; world: number; startedMs: number },
): Promise<void> {
  for (const step of await listTraces(runFolder, world)) {
    const ranks = await readTraces(runFolder, world, step);
    // The folder may hold traces of an earlier run.
    if (ranks.some(({ startMs }) => startMs < startedMs)) continue;
    await naming(file, () => writeFile(resolve(file), JSON.stringify(chromeTrace(ranks))));
    process.stderr.write(`trace of step ${step} in ${file}: open it at https://ui.perfetto.dev or chrome://tracing\n`);
    return;
  }
  process.stderr.write(`${file} was not written: the run ended before the step to trace\n`);
}

/** One Ctrl-C may come twice: from the terminal, and passed on by npm. */
const SAME_PRESS_MS = 500;

/** First a polite stop, then, asked again, an end at once. */
function interrupter(run: { stop(): void; kill(): void }): () => void {
  let askedMs: number | null = null;
  return () => {
    if (askedMs === null) {
      askedMs = performance.now();
      process.stderr.write('\nstopping after this step; press again to end at once\n');
      run.stop();
    } else if (performance.now() - askedMs > SAME_PRESS_MS) run.kill();
  };
}

/**
 * The run's folder, made: --out, or a new one of this run alone. Throws `invalid-config` for an --out that is no folder,
 * `io` for one that cannot be made.
 */
async function makeRunFolder(dataFolder: string, name: string, out: string | undefined): Promise<string> {
  if (out === undefined) return makeDefaultFolder(join(dataFolder, 'trained'), name);
  const folder = resolve(out);
  try {
    await mkdir(folder, { recursive: true });
  } catch (cause) {
    const { code } = cause as NodeJS.ErrnoException;
    if (code === 'EEXIST' || code === 'ENOTDIR')
      throw new StudioError(
        'invalid-config',
        `--out ${out}: a file is there; --out is the run's folder.`,
        {},
        { cause },
      );
    await naming(folder, async () => {
      throw cause;
    });
  }
  return folder;
}

/** Named by the second, the next free one if another run began in this one. */
async function makeDefaultFolder(trained: string, name: string): Promise<string> {
  return naming(trained, async () => {
    await mkdir(trained, { recursive: true });
    for (let ms = Date.now(); ; ms += 1000) {
      const stamp = new Date(ms).toISOString().slice(0, 19).replaceAll(/[-:]/g, '').replace('T', '-');
      const folder = join(trained, `${stamp}-${folderName(name)}`);
      try {
        await mkdir(folder);
        return folder;
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
      }
    }
  });
}

/** Keeps other runs out of the folder, this command's and the studio's. Throws `invalid-config` where one is in it. */
async function lockRunFolder(folder: string): Promise<Lock> {
  const lock = await naming(folder, () => tryLock(join(folder, 'train.lock')));
  const workers = (await readProcesses(folder))?.workers ?? [];
  const other = 'pid' in lock ? lock : workers.find(({ pid, startTime }) => isSameProcess(pid, startTime));
  if ('release' in lock && !other) return lock;
  if ('release' in lock) await lock.release();
  throw new StudioError(
    'invalid-config',
    `${folder} is in use by a run, process ${other?.pid}. Name another folder with --out, or wait for its end.`,
  );
}

/** `latest`: of the folder that --out names, or of the newest run of this name without one. */
async function resolveLatest(
  config: ExperimentConfig,
  dataFolder: string,
  out: string | undefined,
): Promise<ExperimentConfig> {
  if (out !== undefined) return withLatestCheckpoint(config, [resolve(out)], `in ${out}`);
  const trained = join(dataFolder, 'trained');
  const names = await readdir(trained).catch((): string[] => []);
  const suffix = `-${folderName(config.name)}`;
  const ours = names.filter((name) => name.slice(STAMP_LENGTH) === suffix).sort();
  const folders = ours.reverse().map((name) => join(trained, name));
  return withLatestCheckpoint(config, folders, `of a run ${config.name} in ${trained}`);
}

const STAMP_LENGTH = '20261129-153000'.length;

function folderName(name: string): string {
  return name.replaceAll(/[^A-Za-z0-9._-]+/g, '-').slice(0, 60);
}

interface Report {
  write(event: RunEvent): void;
  close(): Promise<void>;
}

/** One JSON object a line. It begins with the start event: lines of log that come earlier wait for it. */
async function openReport(file: string | undefined): Promise<Report> {
  if (file === undefined) return { write: () => undefined, close: async () => undefined };
  const stream = file === '-' ? process.stdout : createWriteStream(resolve(file));
  let failure: Error | null = null;
  if (stream !== process.stdout) {
    stream.on('error', (error) => {
      failure = error;
    });
    await Promise.race([once(stream, 'open'), once(stream, 'error')]).catch((error: Error) => {
      failure = error;
    });
  }
  const check = () => {
    if (failure)
      throw new StudioError(
        'io',
        `--report ${file} cannot be written: ${failure.message}.`,
        { file },
        { cause: failure },
      );
  };
  await new Promise((resolve) => setImmediate(resolve));
  check();
  const put = (event: RunEvent) => stream.write(`${JSON.stringify(event)}\n`);
  let held: RunEvent[] | null = [];
  return {
    write(event) {
      if (held !== null && event.event === 'log') {
        held.push(event);
        return;
      }
      if (held !== null && event.event !== 'start') for (const earlier of held.splice(0)) put(earlier);
      put(event);
      for (const earlier of held ?? []) put(earlier);
      held = null;
    },
    async close() {
      // A stream that failed has closed by itself already.
      check();
      if (stream !== process.stdout && !stream.closed) {
        stream.end();
        await once(stream, 'close');
      }
      check();
    },
  };
}
