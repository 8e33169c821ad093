import { type ChildProcess, fork } from 'node:child_process';
import { createRequire } from 'node:module';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { StudioError } from '../errors.ts';
import { openDevice } from '../runtime/device.ts';
import { uploadUsage } from '../runtime/upload-usage.ts';
import type { AdapterRates, CopyRates } from '../schedule/rates.ts';
import { type AdapterEntry, openAdapter } from './adapters.ts';
import { type CopyTraffic, copyRatesFrom, copyTraffic } from './calibrate-copies.ts';
import { type KernelRates, measureKernels } from './calibrate-kernels.ts';
import { copyEnvironment } from './copy-environment.ts';

/** How long the processes of a calibration may take before it is given up. */
const CHILD_TIMEOUT_MS = 60_000;
/** From when all processes are ready until they begin. */
const BEGIN_MS = 50;
/** By how many processes copies are measured, unless said otherwise. */
const PROCESSES = [1, 2];

/** What one process is to measure: an adapter's copies, and its kernels too or not. */
export interface CalibrationTask {
  readonly id: string;
  readonly kernels: boolean;
  /** Whether it is the only one: a rank without peers has its upload staging elsewhere. */
  readonly alone: boolean;
}

/** What it says: that it is ready to copy, then what it measured, or why it did not. */
export type CalibrationReport = { readonly ready: true } | Measured | { readonly problem: string };
export interface Measured {
  readonly kernels: KernelRates | null;
  readonly traffic: CopyTraffic;
}

/** Opens an adapter in this process and measures it; copies begin when `begin` says. Throws StudioError `no-adapter`. */
export async function measureAdapter(task: CalibrationTask, begin: () => Promise<number>): Promise<Measured> {
  const { adapter, entry } = await openAdapter(task.id);
  const open = await openDevice(adapter);
  try {
    const { software, tensorCores } = entry;
    const kernels = task.kernels ? await measureKernels(open, software, tensorCores) : null;
    const uploads = task.alone ? await uploadUsage(open.device) : GPUBufferUsage.MAP_WRITE | GPUBufferUsage.COPY_SRC;
    return { kernels, traffic: await copyTraffic(open, software, uploads, begin) };
  } finally {
    open.close();
  }
}

/** Where processes that are calibrated together go, as `auto` places ranks: on this adapter, then on the GPUs of its name. */
export function placesFrom(
  { id, name, software }: Pick<AdapterEntry, 'id' | 'name' | 'software'>,
  adapters: readonly Pick<AdapterEntry, 'id' | 'name' | 'software'>[],
): string[] {
  const others = adapters.filter((other) => other.id !== id && other.name === name && !other.software);
  return [id, ...(software ? [] : others.map((other) => other.id))];
}

/**
 * Measures the first of these adapters: its kernels, and copies by one process and by several at once, which take turns over
 * all of them. In processes of their own: one that crashes or hangs costs only itself, and `abortSignal` ends them. Throws
 * StudioError `no-adapter`, which says how they ended.
 */
export async function calibrate(
  places: readonly string[],
  abortSignal?: AbortSignal,
  processes: readonly number[] = PROCESSES,
): Promise<AdapterRates> {
  let kernels: KernelRates | null = null;
  const copies: CopyRates[] = [];
  for (const count of processes) {
    const measured = await measureTogether(places, count, kernels === null, abortSignal);
    kernels ??= measured[0].kernels;
    copies.push(meanOf(measured.map(({ traffic }) => copyRatesFrom(traffic, count))));
  }
  if (!kernels) throw new StudioError('internal', 'no process measured the kernels');
  return { ...kernels, copies };
}

/** Has so many processes measure at once; the first of them kernels too, if asked to. */
async function measureTogether(
  places: readonly string[],
  count: number,
  kernels: boolean,
  abortSignal?: AbortSignal,
): Promise<Measured[]> {
  const probes = Array.from({ length: count }, (_, i) => {
    const id = places[i % places.length];
    return new Probe({ id, kernels: kernels && i === 0, alone: count === 1 }, count);
  });
  const end = () => {
    for (const probe of probes) probe.kill();
  };
  abortSignal?.addEventListener('abort', end);
  if (abortSignal?.aborted) end();
  try {
    const measured = probes.map((probe) => probe.measured);
    // All are ready, or one has failed.
    await Promise.race([Promise.all(probes.map((probe) => probe.ready)), Promise.all(measured)]);
    for (const probe of probes) probe.begin(Date.now() + BEGIN_MS);
    return await Promise.all(measured);
  } finally {
    abortSignal?.removeEventListener('abort', end);
    end();
  }
}

/** One process of a calibration. */
class Probe {
  readonly ready: Promise<void>;
  readonly measured: Promise<Measured>;
  private readonly child: ChildProcess;

  constructor(task: CalibrationTask, count: number) {
    const probe = fileURLToPath(new URL('./calibrate-probe.ts', import.meta.url));
    const loader = createRequire(import.meta.url).resolve('tsx');
    const child = fork(probe, [JSON.stringify(task)], {
      execArgv: ['--import', pathToFileURL(loader).href],
      stdio: ['ignore', 'ignore', 'ignore', 'ipc'],
      // The rates are those of a run, whose ranks share them. Only a GPU has a PCI id.
      env: { ...process.env, ...copyEnvironment(count, task.id.includes(':')) },
    });
    this.child = child;
    let isReady: () => void = () => undefined;
    this.ready = new Promise((resolve) => {
      isReady = resolve;
    });
    this.measured = new Promise((resolve, reject) => {
      let said: Measured | null = null;
      let problem: string | null = null;
      const timer = setTimeout(() => {
        problem = `it did not end within ${CHILD_TIMEOUT_MS} ms`;
        this.kill();
      }, CHILD_TIMEOUT_MS);
      child.on('message', (message) => {
        const report = message as CalibrationReport;
        if ('ready' in report) isReady();
        else if ('problem' in report) problem = report.problem;
        else said = report;
      });
      child.on('error', ({ message }) => {
        problem = message;
      });
      child.on('close', (code, signal) => {
        clearTimeout(timer);
        if (said) return resolve(said);
        const why = problem ?? `it ended with ${signal ?? `exit code ${code}`}`;
        reject(new StudioError('no-adapter', `${task.id} cannot be calibrated: ${why}`, { id: task.id }));
      });
    });
    this.measured.catch(() => undefined);
  }

  begin(atMs: number): void {
    this.child.send({ beginMs: atMs }, () => undefined);
  }

  kill(): void {
    this.child.kill('SIGKILL');
  }
}

/** What each of several processes measured at once comes to. */
function meanOf(rates: readonly CopyRates[]): CopyRates {
  const mean = (name: keyof CopyRates) => rates.reduce((sum, each) => sum + each[name], 0) / rates.length;
  return {
    processes: rates[0].processes,
    uploadBytesPerSecond: mean('uploadBytesPerSecond'),
    hostCopyBytesPerSecond: mean('hostCopyBytesPerSecond'),
    downloadBytesPerSecond: mean('downloadBytesPerSecond'),
    placeBytesPerSecond: mean('placeBytesPerSecond'),
    pieceSeconds: mean('pieceSeconds'),
    roundTripSeconds: mean('roundTripSeconds'),
  };
}
