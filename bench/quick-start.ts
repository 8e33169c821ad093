import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, realpathSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { z } from 'zod';
import { quickStartConfigs } from '../engine/quick-start.ts';
import { type Times, timesOf } from './measure.ts';

const BOUND_MS = 15 * 60_000;
const POLL_MS = 100;
const here = path.resolve(import.meta.dirname, '..');

/** What is read of answers, which another version may have written. */
const RunAnswer = z.object({
  id: z.string(),
  state: z.string(),
  reason: z.string(),
  startedAt: z.string().nullable(),
  endedAt: z.string().nullable(),
  peakBytes: z.number().nullable(),
});
const StepsAnswer = z.object({
  events: z.array(z.object({ seq: z.number(), event: z.string() }).loose()),
  lastSeq: z.number(),
});
const StepAnswer = z.object({ rank: z.number(), iterationMs: z.number(), lossMean: z.number() });

interface RunFigures {
  readonly name: string;
  /** From its start to its end. */
  readonly ms: number;
  readonly firstMs: number;
  /** Of the steps after the first. */
  readonly iterations: Times;
  readonly reservedMiB: number;
  readonly loss: number;
}

interface QuickStartFigures {
  readonly serverMs: number;
  /** From the click to both runs finished. */
  readonly totalMs: number;
  /** Processor time of the studio and its workers in that: what another program on the machine changes least. */
  readonly cpuMs: number;
  readonly runs: readonly RunFigures[];
}

/**
 * The quick-start as its button does it, without the pages: a studio in a process of its own, with an empty data folder on
 * a free port, is asked for both runs and watched until they have ended. `--against PATH`: in turns with the studio of
 * another checkout, with this one's configs on both, and the ratio of the medians; `--rounds N` of each (3). Throws when a
 * run does not finish.
 */
export async function run(args: readonly string[]): Promise<void> {
  const option = (name: string) => (args.includes(name) ? args[args.indexOf(name) + 1] : undefined);
  const against = option('--against');
  if (against === undefined) {
    print(await quickStartOf(here));
    return;
  }
  const other = realpathSync(against);
  const rounds = Number(option('--rounds') ?? '3');
  const [ours, theirs]: [QuickStartFigures[], QuickStartFigures[]] = [[], []];
  for (let round = 0; round < rounds; round++) {
    // Who begins takes turns as well.
    const order = [[here, ours] as const, [other, theirs] as const];
    for (const [checkout, figures] of round % 2 ? order.reverse() : order) {
      figures.push(await quickStartOf(checkout));
      console.log(`round ${round + 1} of ${rounds}: ${checkout} took ${seconds(figures.at(-1)!.totalMs)}`);
    }
  }
  compare('click to both finished', ours, theirs, ({ totalMs }) => totalMs);
  compare('  processor time of it', ours, theirs, ({ cpuMs }) => cpuMs);
  for (const [i, { name }] of ours[0].runs.entries()) {
    compare(`${name}: start to end`, ours, theirs, ({ runs }) => runs[i].ms);
    compare(`${name}: iteration after the first`, ours, theirs, ({ runs }) => runs[i].iterations.medianMs);
    console.log(`  last mean loss ${ours[0].runs[i].loss.toFixed(4)} here, ${theirs[0].runs[i].loss.toFixed(4)} there`);
  }
}

/** Starts the studio of a checkout, runs both, and ends it. */
async function quickStartOf(checkout: string): Promise<QuickStartFigures> {
  const dataFolder = mkdtempSync(path.join(tmpdir(), 'shard-studio-bench-'));
  const began = performance.now();
  const { child, address } = await startStudioOf(checkout, dataFolder);
  try {
    const serverMs = performance.now() - began;
    const api = `${address}/api/v1`;
    const clicked = performance.now();
    const cpuBefore = cpuMsOf(child);
    const configs = Object.values(quickStartConfigs);
    const queued: string[] = [];
    for (const config of configs) queued.push(RunAnswer.parse(await json(`${api}/runs`, { config })).id);
    const deadline = clicked + BOUND_MS;
    const ended = [];
    for (const id of queued) ended.push(await untilEnded(`${api}/runs/${id}`, deadline));
    const totalMs = performance.now() - clicked;
    const cpuMs = cpuMsOf(child) - cpuBefore;
    const runs = await Promise.all(ended.map((one, i) => figuresOf(api, configs[i].name, one)));
    return { serverMs, totalMs, cpuMs, runs };
  } finally {
    const exited = once(child, 'exit');
    child.kill('SIGTERM');
    await exited;
    rmSync(dataFolder, { recursive: true, force: true, maxRetries: 5 });
  }
}

/** The program of the studio's process: says where it is, and ends when told to. */
const PROGRAM = `
const { startStudio } = await import('./server/main.ts');
const dataFolder = process.env.BENCH_DATA;
const studio = await startStudio({ host: '127.0.0.1', port: 0, dataFolder, token: null, pages: 'none' });
process.on('SIGTERM', () => studio.close().then(() => process.exit(0)));
console.log(studio.address);
`;

async function startStudioOf(checkout: string, dataFolder: string): Promise<{ child: ChildProcess; address: string }> {
  const child = spawn(process.execPath, ['--import', 'tsx', '--input-type=module', '--eval', PROGRAM], {
    cwd: checkout,
    env: { ...process.env, BENCH_DATA: dataFolder },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const lines = createInterface({ input: child.stdout! });
  const address = await Promise.race([
    once(lines, 'line').then(([line]) => String(line)),
    once(child, 'exit').then(() => Promise.reject(new Error(`the studio of ${checkout} did not start`))),
  ]);
  return { child, address };
}

/** Clock ticks of /proc, in a second. */
const TICKS = 100;

/** Processor time of a process and of its children that have ended, from proc(5). */
function cpuMsOf({ pid }: ChildProcess): number {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
  // The fields from the third on, after the name in brackets; utime is the 14th of all, cstime the 17th.
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  return (fields.slice(11, 15).reduce((sum, ticks) => sum + Number(ticks), 0) / TICKS) * 1000;
}

async function untilEnded(url: string, deadline: number): Promise<z.infer<typeof RunAnswer>> {
  while (performance.now() < deadline) {
    const found = RunAnswer.parse(await json(url));
    if (found.state === 'finished') return found;
    if (found.state === 'failed' || found.state === 'stopped')
      throw new Error(`${url} ${found.state}: ${found.reason}`);
    await sleep(POLL_MS);
  }
  throw new Error(`${url} has not ended within ${BOUND_MS / 60_000} minutes`);
}

async function figuresOf(api: string, name: string, found: z.infer<typeof RunAnswer>): Promise<RunFigures> {
  const { id, startedAt, endedAt, peakBytes } = found;
  const steps = await stepsOf(`${api}/runs/${id}`);
  if (startedAt === null || endedAt === null || steps.length < 2) throw new Error(`${name} has no times`);
  return {
    name,
    ms: Date.parse(endedAt) - Date.parse(startedAt),
    firstMs: steps[0].iterationMs,
    iterations: timesOf(steps.slice(1).map(({ iterationMs }) => iterationMs)),
    reservedMiB: Math.ceil((peakBytes ?? 0) / 2 ** 20),
    loss: steps[steps.length - 1].lossMean,
  };
}

/** Rank 0's steps, in order. */
async function stepsOf(url: string): Promise<z.infer<typeof StepAnswer>[]> {
  const steps: z.infer<typeof StepAnswer>[] = [];
  for (let after = 0; ; ) {
    const { events, lastSeq } = StepsAnswer.parse(await json(`${url}/events?after=${after}&limit=1000`));
    for (const event of events) {
      if (event.event !== 'step') continue;
      const step = StepAnswer.parse(event);
      if (step.rank === 0) steps.push(step);
    }
    after = events.at(-1)?.seq ?? lastSeq;
    if (after >= lastSeq) return steps;
  }
}

async function json(url: string, body?: unknown): Promise<unknown> {
  const headers = { 'content-type': 'application/json' };
  const response = await fetch(url, body === undefined ? {} : { method: 'POST', headers, body: JSON.stringify(body) });
  const answer: unknown = await response.json();
  if (!response.ok) throw new Error(`${url}: ${response.status} ${JSON.stringify(answer)}`);
  return answer;
}

function print({ serverMs, totalMs, cpuMs, runs }: QuickStartFigures): void {
  console.log(`${'server started'.padEnd(NAME_WIDTH)} ${seconds(serverMs)}`);
  console.log(`${'click to both finished'.padEnd(NAME_WIDTH)} ${seconds(totalMs)}, processor time ${seconds(cpuMs)}`);
  for (const { name, ms, firstMs, iterations, reservedMiB, loss } of runs) {
    console.log(`${`${name}: start to end`.padEnd(NAME_WIDTH)} ${seconds(ms)}`);
    console.log(`${`${name}: iteration after the first`.padEnd(NAME_WIDTH)} ${said(iterations)}`);
    console.log(
      `  first iteration ${seconds(firstMs)}, ${reservedMiB} MiB reserved per rank, last mean loss ${loss.toFixed(4)}`,
    );
  }
}

const NAME_WIDTH = 46;

/** A figure of every round, of both, and the ratio of the medians: below 1 where this checkout is faster. */
function compare(
  name: string,
  ours: readonly QuickStartFigures[],
  theirs: readonly QuickStartFigures[],
  figure: (figures: QuickStartFigures) => number,
): void {
  const [a, b] = [timesOf(ours.map(figure)), timesOf(theirs.map(figure))];
  console.log(
    `${name.padEnd(NAME_WIDTH)} ${said(a)} here, ${said(b)} there, ratio ${(a.medianMs / b.medianMs).toFixed(2)}`,
  );
}

function said({ medianMs, minMs, maxMs, runs }: Times): string {
  return `median ${seconds(medianMs)} (${seconds(minMs)} to ${seconds(maxMs)}, ${runs})`;
}

function seconds(ms: number): string {
  return `${(ms / 1000).toPrecision(3)} s`;
}
