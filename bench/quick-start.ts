import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fromWire, type StepEvent } from '../engine/trainer/events.ts';
import { EventPage, QuickStart, Run } from '../server/contract.ts';
import { startStudio } from '../server/main.ts';
import { line, timesOf } from './measure.ts';

const BOUND_MS = 15 * 60_000;
const POLL_MS = 100;

/**
 * The quick-start as its button does it, without the pages: a studio with an empty data folder on a free port, POST
 * quick-start, until both runs have ended. Prints the time to that, each run's own, and the median iteration of its steps
 * after the first. Throws when a run does not finish.
 */
export async function run(): Promise<void> {
  const dataFolder = mkdtempSync(path.join(tmpdir(), 'shard-studio-bench-'));
  const began = performance.now();
  const studio = await startStudio({ host: '127.0.0.1', port: 0, dataFolder, token: null, pages: 'none' });
  try {
    console.log(figure('server started', performance.now() - began));
    const api = `${studio.address}/api/v1`;
    const clicked = performance.now();
    const { runs } = QuickStart.parse(await json(`${api}/quick-start`, 'POST'));
    const deadline = clicked + BOUND_MS;
    const ended: Run[] = [];
    for (const { id } of runs) ended.push(await untilEnded(`${api}/runs/${id}`, deadline));
    console.log(figure('quick-start, click to both finished', performance.now() - clicked));
    for (const each of ended) await printRun(api, each);
  } finally {
    await studio.close();
    rmSync(dataFolder, { recursive: true, force: true, maxRetries: 5 });
  }
}

async function untilEnded(url: string, deadline: number): Promise<Run> {
  while (performance.now() < deadline) {
    const found = Run.parse(await json(url));
    if (found.state === 'finished') return found;
    if (found.state === 'failed' || found.state === 'stopped')
      throw new Error(`${found.name} ${found.state}: ${found.error?.message ?? found.reason}`);
    await sleep(POLL_MS);
  }
  throw new Error(`${url} has not ended within ${BOUND_MS / 60_000} minutes`);
}

async function printRun(api: string, { id, name, startedAt, endedAt, peakBytes }: Run): Promise<void> {
  const steps = await stepsOf(`${api}/runs/${id}`);
  if (startedAt === null || endedAt === null || steps.length < 2) throw new Error(`${name} has no times`);
  console.log(figure(name, Date.parse(endedAt) - Date.parse(startedAt)));
  console.log(line('  iteration after the first', timesOf(steps.slice(1).map(({ iterationMs }) => iterationMs))));
  const last = steps[steps.length - 1];
  const reservedMiB = Math.ceil((peakBytes ?? 0) / 2 ** 20);
  console.log(
    `  first iteration ${steps[0].iterationMs.toFixed(0)} ms, ${reservedMiB} MiB reserved per rank, ` +
      `last mean loss ${fromWire(last.lossMean).toFixed(4)}`,
  );
}

/** Rank 0's steps, in order. */
async function stepsOf(url: string): Promise<StepEvent[]> {
  const steps: StepEvent[] = [];
  for (let after = 0; ; ) {
    const { events, lastSeq } = EventPage.parse(await json(`${url}/events?after=${after}&limit=1000`));
    for (const event of events) if (event.event === 'step' && event.rank === 0) steps.push(event);
    after = events.at(-1)?.seq ?? lastSeq;
    if (after >= lastSeq) return steps;
  }
}

async function json(url: string, method = 'GET'): Promise<unknown> {
  const response = await fetch(url, { method });
  const body: unknown = await response.json();
  if (!response.ok) throw new Error(`${method} ${url}: ${response.status} ${JSON.stringify(body)}`);
  return body;
}

function figure(name: string, ms: number): string {
  return `${name.padEnd(40)} ${(ms / 1000).toFixed(1)} s`;
}
