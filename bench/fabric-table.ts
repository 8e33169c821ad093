import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { seededRandom } from '../engine/ops/kernel-case.ts';
import { timesOf } from './measure.ts';

const root = path.resolve(import.meta.dirname, '..');
const baseline = path.resolve(root, '../shared/bench/fabric_baseline.py');
const guide = {
  kind: 'demo-transformer',
  vocabSize: 33278,
  ninp: 1024,
  nhead: 64,
  nhid: 4096,
  nlayers: 32,
  dropout: 0.2,
};
const layers = ['TransformerEncoderLayer', 'TransformerDecoderLayer'];
const [STEPS, WARM_UPS, TOKENS] = [12, 3, 35];
const BOUND_MS = 180_000;

/** Rows of the guide's table: Fabric's name, and our strategy on so many devices. */
const ROWS: readonly { name: string; devices: number; strategy: object }[] = [
  { name: 'single', devices: 1, strategy: { kind: 'ddp' } },
  { name: 'ddp', devices: 2, strategy: { kind: 'ddp' } },
  { name: 'no_shard', devices: 2, strategy: { kind: 'fsdp', shardingStrategy: 'NO_SHARD' } },
  { name: 'shard_grad_op', devices: 2, strategy: { kind: 'fsdp', shardingStrategy: 'SHARD_GRAD_OP' } },
  { name: 'full_shard', devices: 2, strategy: { kind: 'fsdp' } },
  { name: 'full_shard_ac', devices: 2, strategy: { kind: 'fsdp', activationCheckpointingPolicy: layers } },
  { name: 'offload', devices: 2, strategy: { kind: 'fsdp', cpuOffload: true } },
  {
    name: 'offload_ac',
    devices: 2,
    strategy: { kind: 'fsdp', cpuOffload: true, activationCheckpointingPolicy: layers },
  },
];

interface Figures {
  readonly ms: readonly number[];
  /** Ours live, torch's allocated. */
  readonly liveMiB: number;
  readonly reservedMiB: number;
}

/**
 * The table of Fabric's FSDP guide: our rows and, where python3 has torch and lightning and there are GPUs enough, Fabric's,
 * in turns. Arguments: --rows a,b (all if left out), --rounds N (2), --adapter NAME.
 */
export async function run(args: readonly string[]): Promise<void> {
  const option = (name: string, otherwise: string) => args[args.indexOf(`--${name}`) + 1 || args.length] ?? otherwise;
  const wanted = option('rows', ROWS.map(({ name }) => name).join(',')).split(',');
  const rounds = Number(option('rounds', '2'));
  const gpus = existsSync(baseline) ? await torchGpus() : 0;
  const folder = mkdtempSync(path.join(tmpdir(), 'shard-studio-table-'));
  try {
    writeFileSync(path.join(folder, 'batches.json'), JSON.stringify(batches()));
    console.log('row             who      median ms     min     max   live MiB  reserved MiB  nvidia-smi MiB');
    for (const row of ROWS.filter(({ name }) => wanted.includes(name))) {
      const results = { ours: [] as Figures[], torch: [] as Figures[] };
      let smiMiB = 0;
      for (let round = 0; round < rounds; round++) {
        if (gpus >= row.devices) results.torch.push(await runTorch(row.name, row.devices));
        const sampler = setInterval(() => void usedMiB().then((mib) => (smiMiB = Math.max(smiMiB, mib))), 300);
        try {
          results.ours.push(await runOurs(row, folder, option('adapter', 'auto')));
        } finally {
          clearInterval(sampler);
        }
      }
      const torch = results.torch.length ? print(row.name, 'torch', results.torch, 0) : null;
      const ours = print(row.name, 'ours', results.ours, smiMiB);
      if (torch)
        console.log(
          `${row.name.padEnd(15)} ratio    time ${(ours.ms / torch.ms).toFixed(3)}, reserved to allocated ${(ours.reservedMiB / torch.liveMiB).toFixed(3)}`,
        );
    }
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

function print(row: string, who: string, figures: readonly Figures[], smiMiB: number) {
  const { medianMs, minMs, maxMs } = timesOf(figures.flatMap(({ ms }) => ms));
  const { liveMiB, reservedMiB } = figures[figures.length - 1];
  const cells = [medianMs.toFixed(1), minMs.toFixed(1), maxMs.toFixed(1), liveMiB.toFixed(0), reservedMiB.toFixed(0)];
  console.log([row.padEnd(15), who.padEnd(7), ...cells.map((cell) => cell.padStart(9)), smiMiB || ''].join(' '));
  return { ms: medianMs, liveMiB, reservedMiB };
}

/** The same tokens for every row: batches[step][rank]. */
function batches(): unknown {
  const random = seededRandom(12345);
  const sequence = () => Array.from({ length: TOKENS }, () => Math.floor(random() * guide.vocabSize));
  return Array.from({ length: STEPS }, () => [0, 1].map(() => ({ input: [sequence()], target: [sequence()] })));
}

async function runOurs(
  { name, devices, strategy }: (typeof ROWS)[number],
  folder: string,
  adapter: string,
): Promise<Figures> {
  const config = {
    name,
    model: guide,
    data: { kind: 'batches', path: path.join(folder, 'batches.json') },
    devices,
    adapter,
    strategy,
    optimizer: { kind: 'adam', lr: 1e-4 },
    trainer: { steps: STEPS },
    checkpoint: { atEnd: false },
  };
  const [file, report] = [path.join(folder, `${name}.yaml`), path.join(folder, `${name}.jsonl`)];
  writeFileSync(file, JSON.stringify(config));
  rmSync(report, { force: true });
  const cli = [
    '--import',
    'tsx',
    'server/cli.ts',
    'train',
    file,
    '--report',
    report,
    '--out',
    path.join(folder, 'run'),
  ];
  await output(process.execPath, cli);
  rmSync(path.join(folder, 'run'), { recursive: true, force: true });
  const events = readFileSync(report, 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
  const steps = events.filter(({ event, rank }) => event === 'step' && rank === 0);
  const { liveBytes, peakBytes } = steps[steps.length - 1].memory;
  const ms = steps.slice(WARM_UPS).map(({ iterationMs }) => iterationMs);
  return { ms, liveMiB: liveBytes / 2 ** 20, reservedMiB: peakBytes / 2 ** 20 };
}

async function runTorch(name: string, devices: number): Promise<Figures> {
  const text = await output('python3', [baseline, name, '--steps', String(STEPS), '--devices', String(devices)]);
  const result = JSON.parse(text.slice(text.indexOf('RESULT ') + 7).split('\n')[0]);
  const ms = [result.iteration_s, result.min_s, result.max_s].map((s: number) => s * 1000);
  return { ms, liveMiB: result.peak_allocated_MiB, reservedMiB: result.peak_reserved_MiB };
}

/** How many GPUs torch sees, 0 without torch or lightning. */
async function torchGpus(): Promise<number> {
  const code = 'import torch, lightning; print(torch.cuda.device_count())';
  return output('python3', ['-c', code]).then(Number, () => 0);
}

async function usedMiB(): Promise<number> {
  const query = ['--query-gpu=memory.used', '--format=csv,noheader,nounits'];
  return output('nvidia-smi', query).then(
    (text) => Math.max(...text.trim().split('\n').map(Number)),
    () => 0,
  );
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
