import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { availableParallelism, tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { discoverAdapters } from '../engine/node/adapters.ts';
import { placeRun } from '../server/scheduler/slots.ts';
import { runEnvironment } from '../server/workers/environment.ts';
import { COLLECTIVES, type CollectiveKind, type RankReport, type RankTask } from './collectives-plan.ts';
import { collectiveHeader, collectiveLine } from './collectives-table.ts';
import { optionsOf } from './options.ts';
import { askBeside, torchBeside } from './torch-parts.ts';

const MiB = 2 ** 20;
const BOUND_MS = 150_000;

/**
 * The collectives by themselves, one process a rank, each against its floor: its bytes over the rates at which all ranks at
 * once copy into upload staging and out of download staging, measured in the same processes just before; then torch's of as
 * many bytes, by NCCL where each rank has a GPU, else by gloo in host memory. Arguments: --ranks N (2), --units N (16), --unit-mib N (64), --rounds N (7), --adapter NAME.
 */
export async function run(args: readonly string[]): Promise<void> {
  const option = optionsOf(args);
  const number = (name: string, otherwise: number) => Number(option(name, String(otherwise)));
  const world = number('ranks', 2);
  const units = number('units', 16);
  const unitBytes = number('unit-mib', 64) * MiB;
  const rounds = number('rounds', 7);
  const adapters = await discoverAdapters();
  const { adapterIds } = placeRun({ adapter: option('adapter', 'auto'), devices: world }, adapters);
  console.log(
    `${world} ranks on ${[...new Set(adapterIds)].join(' and ')}, ${units} units of ${unitBytes / MiB} MiB, ` +
      `${availableParallelism()} cores`,
  );
  const sharedFolder = mkdtempSync(path.join(tmpdir(), 'shard-studio-collectives-'));
  const ranks = adapterIds.map((adapterId, rank) =>
    startRank({ adapterId, rank, world, units, unitBytes, rounds, sharedFolder }, world),
  );
  try {
    const reports = await Promise.all(ranks.map(reportOf));
    const isSoftware = adapters.some(({ id, software }) => software && adapterIds.includes(id));
    const torch = await torchMs({ gpu: !isSoftware, ranks: world }, { units, unitBytes, rounds });
    print(reports, units * unitBytes, torch);
  } finally {
    for (const rank of ranks) rank.kill('SIGKILL');
    rmSync(sharedFolder, { recursive: true, force: true });
  }
}

function startRank(task: RankTask, world: number): ChildProcess {
  const loader = createRequire(import.meta.url).resolve('tsx');
  const child = fork(fileURLToPath(new URL('./collectives-rank.ts', import.meta.url)), [JSON.stringify(task)], {
    execArgv: ['--import', pathToFileURL(loader).href],
    env: runEnvironment(world, task.adapterId.includes(':')),
    timeout: BOUND_MS,
  });
  return child;
}

async function reportOf(child: ChildProcess): Promise<RankReport> {
  const ended = once(child, 'exit').then(([code, signal]) => {
    throw new Error(`a rank ended with ${signal ?? code}`);
  });
  const [report] = await Promise.race([once(child, 'message'), ended]);
  ended.catch(() => undefined);
  return report as RankReport;
}

/** Torch's times of each collective, after one of each that does not count; empty where it has none. */
async function torchMs(
  setting: { readonly gpu: boolean; readonly ranks: number },
  size: Pick<RankTask, 'units' | 'unitBytes' | 'rounds'>,
): Promise<ReadonlyMap<CollectiveKind, readonly number[]>> {
  const torch = await torchBeside(setting);
  const found = new Map<CollectiveKind, readonly number[]>();
  for (const kind of COLLECTIVES)
    found.set(kind, (await askBeside(torch, { ask: 'collective', kind, ...size }))?.ms ?? []);
  torch?.close();
  return found;
}

function print(
  reports: readonly RankReport[],
  bytes: number,
  torch: ReadonlyMap<CollectiveKind, readonly number[]>,
): void {
  const least = (of: (report: RankReport) => number) => Math.min(...reports.map(of));
  const rates = {
    upBytesPerSecond: least((r) => r.upBytesPerSecond),
    downBytesPerSecond: least((r) => r.downBytesPerSecond),
  };
  const gb = (rate: number) => (rate / 1e9).toFixed(1);
  console.log(
    `copies into upload staging ${gb(rates.upBytesPerSecond)} GB/s a rank, ` +
      `out of download staging ${gb(rates.downBytesPerSecond)} GB/s a rank`,
  );
  console.log(collectiveHeader());
  for (const kind of COLLECTIVES) {
    // A collective ends when its last rank does.
    const ms = reports[0].ms[kind].map((_, round) => Math.max(...reports.map((r) => r.ms[kind][round])));
    const traffic = reports[0].traffic[kind];
    console.log(collectiveLine({ kind, bytes, traffic, rates, ms, torchMs: torch.get(kind) ?? [] }));
  }
}
