import { spawn } from 'node:child_process';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { parseConfig } from '../engine/config.ts';
import { discoverAdapters } from '../engine/node/adapters.ts';
import { calibrate } from '../engine/node/calibrate.ts';
import { writeCalibration } from '../engine/node/calibration-store.ts';
import type { RunEvent, StepEvent } from '../engine/trainer/events.ts';
import { placeRun } from '../server/scheduler/slots.ts';
import { batchesOf, type Figures, type Row } from './fabric-table-rows.ts';
import { type GpuReading, readGpuProcesses, readGpus } from './gpu-memory.ts';
import type { GUIDE_MODEL } from './guide-model.ts';

const root = path.resolve(import.meta.dirname, '..');
const WARM_UPS = 3;
const BOUND_MS = 180_000;
const SAMPLE_MS = 400;

/** Ours have more to say: what was predicted, and what the driver reports beside what was planned, on the fullest GPU. */
export interface OwnFigures extends Figures {
  readonly predictedMs: number | null;
  readonly plannedMiB: number;
  readonly driverMiB: number | null;
  readonly places: string;
}

export interface OwnRun {
  /** Where its files go, and the calibration of its adapters lies. */
  readonly folder: string;
  readonly steps: number;
  readonly adapter: string;
  readonly model: Readonly<Record<keyof typeof GUIDE_MODEL, string | number>> & { readonly vocabSize: number };
}

type StartEvent = Extract<RunEvent, { event: 'start' }>;

function dataFolderOf({ folder }: OwnRun): string {
  return path.join(folder, 'data');
}

/**
 * Measures the adapters on which rows of up to so many ranks run, so that their times are predicted from this machine's rates:
 * one of them, with as many processes at once as there are ranks, for all, since they are GPUs of one name.
 */
export async function measureRates(run: OwnRun, devices: number): Promise<void> {
  const adapters = await discoverAdapters();
  const { slots } = placeRun(parseConfig({ adapter: run.adapter, devices }), adapters);
  const rates = await calibrate(slots, undefined, devices > 1 ? [1, devices] : [1]);
  for (const entry of adapters.filter(({ id }) => slots.includes(id)))
    await writeCalibration(dataFolderOf(run), entry, rates);
}

/** Runs a row as `train` does. Rejects with how it ended when it did not finish. */
export async function runOurs(row: Row, run: OwnRun): Promise<OwnFigures> {
  const { name, devices, strategy, precision } = row;
  const { folder, steps, adapter, model } = run;
  const file = (end: string) => path.join(folder, `${name}.${end}`);
  const config = {
    name,
    model: { ...model, dropout: 0.2 },
    data: { kind: 'batches', path: file('batches.json') },
    precision,
    devices,
    adapter,
    strategy,
    optimizer: { kind: 'adam', lr: 1e-4 },
    trainer: { steps },
    // The quickest start; with offload the host makes them all the same.
    init: { mode: 'device' },
    checkpoint: { atEnd: false },
  };
  writeFileSync(file('batches.json'), JSON.stringify(batchesOf(row, steps, model.vocabSize)));
  writeFileSync(file('yaml'), JSON.stringify(config));
  rmSync(file('jsonl'), { force: true });
  const driver = await DriverMemory.open();
  const sampler = setInterval(() => void driver.sample(), SAMPLE_MS);
  try {
    await train([file('yaml'), '--report', file('jsonl'), '--out', file('run')], dataFolderOf(run));
  } finally {
    clearInterval(sampler);
    rmSync(file('run'), { recursive: true, force: true });
    rmSync(file('batches.json'), { force: true });
  }
  const events = readFileSync(file('jsonl'), 'utf8')
    .trim()
    .split('\n')
    .map((text) => JSON.parse(text) as RunEvent);
  return figuresOf(events, driver.most);
}

/** What each GPU holds at its fullest, by PCI id, of processes that were not on it at the beginning. */
class DriverMemory {
  readonly most = new Map<string, number>();
  readonly #before: { readonly pids: ReadonlySet<number>; readonly gpus: readonly GpuReading[] };

  private constructor(pids: ReadonlySet<number>, gpus: readonly GpuReading[]) {
    this.#before = { pids, gpus };
  }

  static async open(): Promise<DriverMemory> {
    const pids = new Set((await readGpuProcesses()).map(({ pid }) => pid));
    return new DriverMemory(pids, await readGpus());
  }

  async sample(): Promise<void> {
    const { pids, gpus } = this.#before;
    if (gpus.length === 0) return;
    const ours = (await readGpuProcesses()).filter(({ pid }) => !pids.has(pid));
    // A driver that lists no processes still has its sums.
    const readings = ours.length
      ? ours
      : (await readGpus()).map((gpu, i) => ({ ...gpu, usedMiB: gpu.usedMiB - gpus[i].usedMiB }));
    for (const [pciId, usedMiB] of sums(readings)) this.most.set(pciId, Math.max(this.most.get(pciId) ?? 0, usedMiB));
  }
}

/** What each GPU holds, by PCI id. */
function sums(readings: readonly GpuReading[]): Map<string, number> {
  const sum = new Map<string, number>();
  for (const { pciId, usedMiB } of readings) sum.set(pciId, (sum.get(pciId) ?? 0) + usedMiB);
  return sum;
}

/** The figures of a run's events, beside what each GPU was seen to hold, by PCI id. */
export function figuresOf(events: readonly RunEvent[], driver: ReadonlyMap<string, number>): OwnFigures {
  const start = events.find((event): event is StartEvent => event.event === 'start');
  const steps = events.filter((event): event is StepEvent => event.event === 'step');
  const end = events[events.length - 1];
  if (!start || end.event !== 'end' || end.status !== 'finished')
    throw new Error(`the run did not finish: ${JSON.stringify(end)}`);
  const peak = (rank: number) =>
    Math.max(...steps.filter((s) => s.rank === rank).map((s) => s.memory.peakBytes)) / 2 ** 20;
  const planned = new Map<string, number>();
  for (const [rank, { pciId, name }] of start.adapters.entries())
    planned.set(pciId ?? name, (planned.get(pciId ?? name) ?? 0) + peak(rank));
  const [fullest, plannedMiB] = [...planned].reduce((a, b) => (b[1] > a[1] ? b : a));
  const first = steps.filter(({ rank }) => rank === 0);
  return {
    ms: first.slice(WARM_UPS).map(({ iterationMs }) => iterationMs),
    liveMiB: Math.max(...first.map(({ memory }) => memory.liveBytes)) / 2 ** 20,
    reservedMiB: peak(0),
    predictedMs: start.predicted.estimateMs ?? null,
    plannedMiB,
    driverMiB: driver.get(fullest) ?? null,
    places: start.adapters.some(({ pciId }) => pciId !== null)
      ? start.adapters.map(({ pciId }) => pciId).join(' and ')
      : '',
  };
}

/** The command, bounded. Rejects with the end of its errors. */
function train(args: readonly string[], dataFolder: string): Promise<void> {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, ['--import', 'tsx', 'server/cli.ts', 'train', ...args], {
      cwd: root,
      env: { ...process.env, STUDIO_DATA: dataFolder },
      stdio: ['ignore', 'ignore', 'pipe'],
      timeout: BOUND_MS,
    });
    let errors = '';
    child.stderr.setEncoding('utf8').on('data', (chunk) => {
      errors = (errors + chunk).slice(-2000);
    });
    child.on('error', reject);
    child.on('close', (code, signal) =>
      code === 0 ? resolve() : reject(new Error(`train ended with ${code ?? signal}: ${errors}`)),
    );
  });
}
