import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { seededRandom } from '../engine/ops/kernel-case.ts';
import type { RunEvent, StepEvent } from '../engine/trainer/events.ts';
import { type GpuReading, readGpus } from './gpu-memory.ts';
import { GUIDE_MODEL } from './guide-model.ts';
import { timesOf } from './measure.ts';

const root = path.resolve(import.meta.dirname, '..');
const baseline = path.resolve(root, '../shared/bench/fabric_baseline.py');
const layers = ['TransformerEncoderLayer', 'TransformerDecoderLayer'];
const [WARM_UPS, TOKENS] = [3, 35];
const BOUND_MS = 180_000;
const SAMPLE_MS = 400;

/** A row of the guide's table: Fabric's name for it, and our strategy on so many devices. */
export interface Row {
  readonly name: string;
  readonly torch: string;
  readonly devices: number;
  readonly strategy: object;
}

const offload = { kind: 'fsdp', cpuOffload: true };
const checkpointed = { activationCheckpointingPolicy: layers };
const ROWS: readonly Row[] = [
  { name: 'single', torch: 'single', devices: 1, strategy: { kind: 'ddp' } },
  { name: 'offload-1', torch: 'offload', devices: 1, strategy: offload },
  { name: 'offload_ac-1', torch: 'offload_ac', devices: 1, strategy: { ...offload, ...checkpointed } },
  ...[
    { name: 'ddp', strategy: { kind: 'ddp' } },
    { name: 'no_shard', strategy: { kind: 'fsdp', shardingStrategy: 'NO_SHARD' } },
    { name: 'shard_grad_op', strategy: { kind: 'fsdp', shardingStrategy: 'SHARD_GRAD_OP' } },
    { name: 'full_shard', strategy: { kind: 'fsdp' } },
    { name: 'full_shard_ac', strategy: { kind: 'fsdp', ...checkpointed } },
    { name: 'offload', strategy: offload },
    { name: 'offload_ac', strategy: { ...offload, ...checkpointed } },
  ].map((row) => ({ ...row, torch: row.name, devices: 2 })),
];

type StartEvent = Extract<RunEvent, { event: 'start' }>;

interface Figures {
  readonly ms: readonly number[];
  /** Ours live, torch's allocated, each at its peak. */
  readonly liveMiB: number;
  readonly reservedMiB: number;
}

/** Ours have more to say: what was predicted, and what the driver reports beside what was planned, on the fullest GPU. */
interface OwnFigures extends Figures {
  readonly predictedMs: number | null;
  readonly plannedMiB: number;
  readonly driverMiB: number | null;
  readonly places: string;
}

const COLUMNS = ['row', 'who', 'median ms', 'min', 'max', 'predicted', 'live MiB', 'reserved', 'planned', 'nvidia-smi'];
const WIDTHS = [14, 6, 10, 8, 8, 10, 9, 9, 8, 14];

/**
 * The table of Fabric's FSDP guide: our rows and, where python3 has torch and lightning and there are GPUs enough, Fabric's,
 * in turns. Arguments: --rows a,b (in that order; all if left out), --rounds N (1), --steps N (8, of which three are not counted),
 * --adapter NAME, --layers N (32).
 */
export async function run(args: readonly string[]): Promise<void> {
  const option = (name: string, otherwise: string) => args[args.indexOf(`--${name}`) + 1 || args.length] ?? otherwise;
  const wanted = option('rows', ROWS.map(({ name }) => name).join(',')).split(',');
  const unknown = wanted.filter((name) => !ROWS.some((row) => row.name === name));
  if (unknown.length)
    throw new Error(`no row ${unknown.join(', ')}; there are ${ROWS.map(({ name }) => name).join(', ')}`);
  const rounds = Number(option('rounds', '1'));
  const steps = Number(option('steps', '8'));
  const nlayers = Number(option('layers', '32'));
  const gpus = existsSync(baseline) ? await torchGpus() : 0;
  const folder = mkdtempSync(path.join(tmpdir(), 'shard-studio-table-'));
  try {
    writeFileSync(path.join(folder, 'batches.json'), JSON.stringify(batches(steps)));
    console.log(line(COLUMNS));
    for (const row of wanted.map((name) => ROWS.find((each) => each.name === name)!)) {
      const results = { ours: [] as OwnFigures[], torch: [] as Figures[] };
      for (let round = 0; round < rounds; round++) {
        if (gpus >= row.devices) results.torch.push(await runTorch(row, steps, nlayers));
        results.ours.push(await runOurs(row, { folder, steps, nlayers, adapter: option('adapter', 'auto') }));
      }
      printRow(row, results.ours, results.torch);
    }
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

function printRow(row: Row, ours: readonly OwnFigures[], torch: readonly Figures[]): void {
  const last = ours[ours.length - 1];
  const ms = timesOf(ours.flatMap((figures) => figures.ms));
  if (torch.length) {
    const theirs = timesOf(torch.flatMap((figures) => figures.ms));
    const { liveMiB, reservedMiB } = torch[torch.length - 1];
    console.log(line([row.name, 'torch', ...three(theirs), '', whole(liveMiB), whole(reservedMiB)]));
    console.log(line([row.name, 'ours', ...three(ms), ...own(last)]));
    const ratio = ms.medianMs / theirs.medianMs;
    console.log(line([row.name, 'ratio', ratio.toFixed(3), '', '', '', '', (last.reservedMiB / liveMiB).toFixed(3)]));
  } else console.log(line([row.name, 'ours', ...three(ms), ...own(last)]));
  if (last.places) console.log(`${' '.repeat(WIDTHS[0] + 1)}ranks on ${last.places}`);
}

function three({ medianMs, minMs, maxMs }: ReturnType<typeof timesOf>): string[] {
  return [medianMs, minMs, maxMs].map((ms) => ms.toFixed(1));
}

function own({ predictedMs, liveMiB, reservedMiB, plannedMiB, driverMiB }: OwnFigures): string[] {
  const driver =
    driverMiB === null ? '' : `${whole(driverMiB)} ${agrees(plannedMiB, driverMiB) ? 'agrees' : 'DIFFERS'}`;
  return [
    predictedMs === null ? '' : whole(predictedMs),
    whole(liveMiB),
    whole(reservedMiB),
    whole(plannedMiB),
    driver,
  ];
}

/** Whether the driver reports what was planned for a GPU, but for 10 % and what its context takes. */
export function agrees(plannedMiB: number, driverMiB: number): boolean {
  return Math.abs(driverMiB - plannedMiB) <= plannedMiB * 0.1 + 600;
}

function whole(value: number): string {
  return value.toFixed(0);
}

function line(cells: readonly string[]): string {
  const padded = cells.map((cell, i) => (i < 2 ? cell.padEnd(WIDTHS[i]) : cell.padStart(WIDTHS[i])));
  return padded.join(' ').trimEnd();
}

/** The same tokens for every row: batches[step][rank]. */
function batches(steps: number): unknown {
  const random = seededRandom(12345);
  const sequence = () => Array.from({ length: TOKENS }, () => Math.floor(random() * GUIDE_MODEL.vocabSize));
  return Array.from({ length: steps }, () => [0, 1].map(() => ({ input: [sequence()], target: [sequence()] })));
}

interface OwnRun {
  readonly folder: string;
  readonly steps: number;
  readonly nlayers: number;
  readonly adapter: string;
}

async function runOurs(
  { name, devices, strategy }: Row,
  { folder, steps, nlayers, adapter }: OwnRun,
): Promise<OwnFigures> {
  const config = {
    name,
    model: { ...GUIDE_MODEL, dropout: 0.2, nlayers },
    data: { kind: 'batches', path: path.join(folder, 'batches.json') },
    devices,
    adapter,
    strategy,
    optimizer: { kind: 'adam', lr: 1e-4 },
    trainer: { steps },
    // The quickest start; with offload the host makes them all the same.
    init: { mode: 'device' },
    checkpoint: { atEnd: false },
  };
  const [file, report, out] = ['yaml', 'jsonl', 'run'].map((end) => path.join(folder, `${name}.${end}`));
  writeFileSync(file, JSON.stringify(config));
  rmSync(report, { force: true });
  const before = await readGpus();
  const most = new Map<string, number>();
  const sampler = setInterval(() => void readGpus().then((gpus) => raise(most, gpus)), SAMPLE_MS);
  try {
    const cli = ['--import', 'tsx', 'server/cli.ts', 'train', file, '--report', report, '--out', out];
    await output(process.execPath, cli);
  } finally {
    clearInterval(sampler);
    rmSync(out, { recursive: true, force: true });
  }
  const events = readFileSync(report, 'utf8')
    .trim()
    .split('\n')
    .map((text) => JSON.parse(text) as RunEvent);
  return figuresOf(events, grown(before, most));
}

function raise(most: Map<string, number>, gpus: readonly GpuReading[]): void {
  for (const { pciId, usedMiB } of gpus) most.set(pciId, Math.max(most.get(pciId) ?? 0, usedMiB));
}

/** What each GPU held at its fullest beyond what it held before. */
function grown(before: readonly GpuReading[], most: ReadonlyMap<string, number>): Map<string, number> {
  return new Map(before.map(({ pciId, usedMiB }) => [pciId, (most.get(pciId) ?? usedMiB) - usedMiB]));
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

async function runTorch({ torch, devices }: Row, steps: number, nlayers: number): Promise<Figures> {
  const options = { steps, devices, layers: nlayers };
  const args = Object.entries(options).flatMap(([name, value]) => [`--${name}`, String(value)]);
  const text = await output('python3', [baseline, torch, ...args]);
  const result = JSON.parse(text.slice(text.indexOf('RESULT ') + 7).split('\n')[0]);
  const ms = [result.iteration_s, result.min_s, result.max_s].map((s: number) => s * 1000);
  return { ms, liveMiB: result.peak_allocated_MiB, reservedMiB: result.peak_reserved_MiB };
}

/** How many GPUs torch sees, 0 without torch or lightning. */
async function torchGpus(): Promise<number> {
  const code = 'import torch, lightning; print(torch.cuda.device_count())';
  return output('python3', ['-c', code]).then(Number, () => 0);
}

/** What a program prints. Rejects with the end of its errors when it fails or takes too long. */
function output(program: string, args: readonly string[]): Promise<string> {
  return new Promise((resolve, reject) => {
    const child = spawn(program, args, { cwd: root, timeout: BOUND_MS });
    let [said, errors] = ['', ''];
    child.stdout.on('data', (chunk) => (said += chunk));
    child.stderr.on('data', (chunk) => (errors = (errors + chunk).slice(-2000)));
    child.on('error', reject);
    child.on('close', (code) =>
      code === 0 ? resolve(said) : reject(new Error(`${program} ended with ${code}: ${errors}`)),
    );
  });
}
