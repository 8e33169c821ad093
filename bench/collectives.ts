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
import { timesOf } from './measure.ts';

const MiB = 2 ** 20;
const BOUND_MS = 150_000;

/**
 * The collectives by themselves, one process a rank, each against its floor: its bytes over the rates at which all ranks at
 * once copy into upload staging and out of download staging, measured in the same processes just before. Arguments:
 * --ranks N (2), --units N (16), --unit-mib N (64), --rounds N (7), --adapter NAME.
 */
export async function run(args: readonly string[]): Promise<void> {
  const option = (name: string, otherwise: string) => args[args.indexOf(`--${name}`) + 1 || args.length] ?? otherwise;
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
    print(await Promise.all(ranks.map(reportOf)), units * unitBytes);
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

function print(reports: readonly RankReport[], bytes: number): void {
  const least = (of: (report: RankReport) => number) => Math.min(...reports.map(of));
  const upRate = least((r) => r.upBytesPerSecond);
  const downRate = least((r) => r.downBytesPerSecond);
  const gb = (rate: number) => (rate / 1e9).toFixed(1);
  console.log(
    `copies into upload staging ${gb(upRate)} GB/s a rank, out of download staging ${gb(downRate)} GB/s a rank`,
  );
  console.log('collective      up MB  down MB  floor ms  median ms     min     max  of floor   GB/s of the tensor');
  for (const kind of COLLECTIVES) {
    const { upBytes, downBytes } = reports[0].traffic[kind];
    const floorMs = Math.max(upBytes / upRate, downBytes / downRate) * 1000;
    // A collective ends when its last rank does.
    const times = reports[0].ms[kind].map((_, round) => Math.max(...reports.map((r) => r.ms[kind][round])));
    const { medianMs, minMs, maxMs } = timesOf(times);
    const cells: [string | number, number][] = [
      [(upBytes / 1e6).toFixed(0), 8],
      [(downBytes / 1e6).toFixed(0), 8],
      [floorMs.toFixed(1), 9],
      [medianMs.toFixed(1), 10],
      [minMs.toFixed(1), 7],
      [maxMs.toFixed(1), 7],
      [(medianMs / floorMs).toFixed(2), 9],
      [(bytes / medianMs / 1e6).toFixed(1), 20],
    ];
    console.log([name(kind), ...cells.map(([cell, width]) => String(cell).padStart(width))].join(' '));
  }
}

function name(kind: CollectiveKind): string {
  return kind.padEnd(14);
}
