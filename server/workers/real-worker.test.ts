import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { parseConfig } from '../../engine/config.ts';
import { isSameProcess } from '../../engine/node/liveness.ts';
import type { RunEvent } from '../../engine/trainer/events.ts';
import { type LaunchedRun, launchRun } from './supervisor.ts';

let folder: string;
let run: LaunchedRun | null = null;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'real-worker-'));
});
afterEach(async () => {
  run?.kill();
  await run?.done;
  await rm(folder, { recursive: true, force: true });
});

const STEPS = 3000;

/** Two ranks of the engine on the bundled software GPU, far from done. */
async function train() {
  const tokens = { input: [1, 2, 3, 4], target: [2, 3, 4, 5] };
  const path = join(folder, 'batches.json');
  await writeFile(path, JSON.stringify(Array.from({ length: STEPS }, () => [tokens, tokens])));
  const events: RunEvent[] = [];
  run = launchRun({
    config: parseConfig({
      model: { kind: 'demo-transformer', ninp: 8, nhead: 2, nhid: 8, nlayers: 1 },
      data: { kind: 'batches', path },
      trainer: { steps: STEPS },
    }),
    runFolder: folder,
    corpusFolder: folder,
    adapterIds: ['swiftshader', 'swiftshader'],
    recordTouches: false,
    weightsFile: null,
    onEvent: (event) => events.push(event),
  });
  const ended = run.done.then((end) => JSON.stringify(end.error));
  const began = async () => {
    while (!events.some((event) => event.event === 'step' && event.step > 1))
      await new Promise((resolve) => setTimeout(resolve, 20));
    return 'training';
  };
  expect(await Promise.race([began(), ended])).toBe('training');
  const traces = JSON.parse(await readFile(join(folder, 'processes.json'), 'utf8')) as {
    workers: { pid: number; startTime: number }[];
    sharedFolder: string;
  };
  return { run, traces };
}

// The engine compiles its kernels on a CPU first.
describe('ranks of the engine', { timeout: 90_000 }, () => {
  it('end when one of them is killed; the run names that one, and nothing is left', async () => {
    const { run, traces } = await train();
    process.kill(traces.workers[1].pid, 'SIGKILL');
    const killedMs = performance.now();
    const end = await run.done;
    expect(end.status).toBe('failed');
    expect(end.error).toMatchObject({ code: 'worker-died', rank: 1 });
    expect(end.error?.message).toContain('SIGKILL');
    expect(performance.now() - killedMs).toBeLessThan(20_000);
    expect(traces.workers.some(({ pid, startTime }) => isSameProcess(pid, startTime))).toBe(false);
    expect(await readdir(traces.sharedFolder).catch(() => 'gone')).toBe('gone');
  });

  it('stop after a step and save what they have', async () => {
    const { run } = await train();
    run.stop();
    const end = await run.done;
    expect(end.error).toBeUndefined();
    expect(end.status).toBe('stopped');
    expect(end.checkpoints).toHaveLength(1);
    expect(end.checkpoints[0].step).toBeLessThan(STEPS);
  });
});
