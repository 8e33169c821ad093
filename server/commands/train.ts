import { writeFile } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import type { ExperimentConfig } from '../../engine/config.ts';
import { StudioError } from '../../engine/errors.ts';
import { discoverAdapters } from '../../engine/node/adapters.ts';
import { naming } from '../../engine/node/file-bytes.ts';
import { listTraces, machineClockMs, readTraces } from '../../engine/node/trace-files.ts';
import { chromeTrace } from '../../engine/trainer/chrome-trace.ts';
import type { RunEvent } from '../../engine/trainer/events.ts';
import { pathsOf } from '../runs/config-paths.ts';
import { INTERPRETER, placeRun } from '../scheduler/slots.ts';
import { launchRun } from '../workers/supervisor.ts';
import { readArguments } from './arguments.ts';
import { readConfigFile } from './config-file.ts';
import { onPress } from './one-press.ts';
import { printable, whenOutputBreaks } from './output.ts';
import { Progress } from './progress.ts';
import { openReport } from './report-file.ts';
import { lockRunFolder, makeRunFolder, resolveLatest } from './train-folder.ts';
import { exitCodeOfError, UsageError } from './usage.ts';
import { checkWrittenFiles, type WrittenFile } from './written-file.ts';

/** `train CONFIG …`: runs it here and now, without the studio's database. Returns the exit code. */
export async function train(args: string[]): Promise<number> {
  const { values, positionals } = readArguments({
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
  checkTraceStep(traceStep, config);
  const read = [['the config', positionals[0]] as const, ...pathsOf(config)].map(([name, file]) => ({ name, file }));
  await checkWrittenFiles(writtenFiles(values), read, values.out === undefined ? null : resolve(values.out));
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
  const stop = () => {
    process.stderr.write('\nstopping after this step; press again to end at once\n');
    run.stop();
  };
  const interrupt = onPress(stop, () => run.kill());
  // Whoever asks a program to end, a batch system's time limit say, gets a checkpoint; a person at a terminal what is configured.
  const terminate = () => {
    run.save();
    interrupt();
  };
  process.on('SIGINT', interrupt).on('SIGTERM', terminate);
  // Nobody reads the report, or what is printed, any more: what was asked for cannot be given. The other may be read still.
  let outputBroke = false;
  whenOutputBreaks(() => {
    outputBroke = true;
    process.stderr.write('nobody reads the report any more; stopping after this step\n');
    run.stop();
  });
  const end = await run.done;
  process.off('SIGINT', interrupt).off('SIGTERM', terminate);
  if (outputBroke) {
    progress.show(end);
    if (end.checkpoints.length) process.stderr.write(`in ${printable(runFolder)}\n`);
    return 1;
  }
  show(end);
  if (end.checkpoints.length) process.stderr.write(`in ${printable(runFolder)}\n`);
  await report.close();
  if (values.trace !== undefined && !end.error)
    await writeTrace(values.trace, { runFolder, world: config.devices, startedMs });
  if (end.error) return exitCodeOfError(end.error.code);
  return end.status === 'finished' ? 0 : 1;
}

/** The number of --trace-step; null leaves the choice to the run. Throws UsageError. */
function traceStepOf(file: string | undefined, text: string | undefined): number | null {
  if (text === undefined) return null;
  if (file === undefined) throw new UsageError('--trace-step goes with --trace FILE');
  if (!/^\d{1,8}$/.test(text)) throw new UsageError(`--trace-step ${text}: a step is a whole number, counted from 0`);
  return Number(text);
}

/** A step that the run will not make is refused before anything starts; where it begins, a resumed run says itself. */
function checkTraceStep(step: number | null, { trainer: { steps } }: ExperimentConfig): void {
  if (step === null || step < steps) return;
  throw new StudioError(
    'invalid-config',
    `--trace-step ${step}: trainer.steps ${steps} makes steps 0 to ${steps - 1}, counted from 0. Name one of these.`,
  );
}

/** What the command writes besides the run's folder. */
function writtenFiles({ report, weights, trace }: Training['values']): WrittenFile[] {
  const named = (option: string, file: string | undefined, replaces: boolean) =>
    file === undefined || (option === '--report' && file === '-') ? [] : [{ option, file, replaces }];
  return [...named('--report', report, true), ...named('--weights', weights, false), ...named('--trace', trace, true)];
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
    process.stderr.write(
      `trace of step ${step} in ${printable(file)}: open it at https://ui.perfetto.dev or chrome://tracing\n`,
    );
    return;
  }
  process.stderr.write(`${printable(file)} was not written: the run ended before the step to trace\n`);
}
