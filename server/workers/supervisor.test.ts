import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, readdir, readFile, rm, symlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { parseConfig } from '../../engine/config.ts';
import { processStartTime } from '../../engine/node/liveness.ts';
import type { RunEvent } from '../../engine/trainer/events.ts';
import { type LaunchOptions, launchRun } from './supervisor.ts';

const entry = fileURLToPath(new URL('./fixtures/worker.ts', import.meta.url));
let runFolder: string;

beforeEach(async () => {
  runFolder = await mkdtemp(join(tmpdir(), 'supervisor-'));
});
afterEach(() => rm(runFolder, { recursive: true, force: true }));

function launch(name: string, options: Partial<LaunchOptions> & { devices?: number; steps?: number } = {}) {
  const { devices = 2, steps = 4, ...rest } = options;
  const events: RunEvent[] = [];
  const run = launchRun({
    config: parseConfig({ name, devices, trainer: { steps } }),
    runFolder,
    corpusFolder: runFolder,
    adapterIds: ['a', 'a'],
    recordTouches: false,
    weightsFile: null,
    onEvent: (event) => events.push(event),
    entry,
    ...rest,
  });
  const stepSeen = async () => {
    while (!events.some(({ event }) => event === 'step')) await new Promise((resolve) => setTimeout(resolve, 10));
  };
  return { run, events, stepSeen };
}

const leftOver = async () => ({
  shared: (await readdir('/dev/shm')).filter((name) => name.startsWith('shard-studio-')),
  traces: existsSync(join(runFolder, 'processes.json')),
});

describe('launchRun', () => {
  it('runs a process for each rank, passes their events on in order and says how it ended', async () => {
    const before = (await leftOver()).shared.length;
    const { run, events } = launch('ok');
    const end = await run.done;
    expect(end).toMatchObject({ status: 'finished', peakBytesByRank: [2000, 2001] });
    expect(end.error).toBeUndefined();
    expect(end.checkpoints.map(({ path }) => path)).toEqual(['checkpoints/step-000004.ckpt']);
    expect(events[0].event).toBe('start');
    for (const rank of [0, 1])
      expect(events.flatMap((e) => (e.event === 'step' && e.rank === rank ? [e.step] : []))).toEqual([0, 1, 2, 3]);
    const after = await leftOver();
    expect(after.traces).toBe(false);
    expect(after.shared.length).toBeLessThanOrEqual(before);
  });

  it('runs all ranks of the interpreter in one process', async () => {
    const { run, events } = launch('ok', { adapterIds: ['interpreter'], devices: 3 });
    const end = await run.done;
    expect(end).toMatchObject({ status: 'finished', peakBytesByRank: [2000, 2001, 2002] });
    expect(events.filter(({ event }) => event === 'step')).toHaveLength(12);
    expect((await readdir(join(runFolder, 'logs'))).length).toBe(1);
  });

  it('gives a worker nothing of the environment but what it needs', async () => {
    process.env.STUDIO_TOKEN = 'secret';
    process.env.NODE_OPTIONS = '--no-warnings';
    try {
      await launch('ok').run.done;
    } finally {
      delete process.env.STUDIO_TOKEN;
      delete process.env.NODE_OPTIONS;
    }
    const env = JSON.parse(await readFile(join(runFolder, 'environment-0.json'), 'utf8'));
    expect(env.PATH).toBe(process.env.PATH);
    expect(Object.keys(env).filter((key) => /TOKEN|NODE_OPTIONS|VITEST/.test(key))).toEqual([]);
  });

  it('ends the other ranks when one is killed, and names that one with its last lines', async () => {
    const { run } = launch('crash-1', { steps: 1000 });
    const end = await run.done;
    expect(end.status).toBe('failed');
    expect(end.error).toMatchObject({ code: 'worker-died', rank: 1 });
    expect(end.error?.message).toMatch(/rank 1 died with signal SIGKILL[\s\S]*about to crash/);
    expect((await leftOver()).traces).toBe(false);
  });

  it('waits longer for a rank that says it is saving', async () => {
    const patience = { stopMs: 1500, killMs: 100, saveMs: 60_000 };
    const { run, events, stepSeen } = launch('saver', { steps: 1000, patience });
    await stepSeen();
    run.stop();
    const end = await run.done;
    expect([end.status, end.checkpoints.length]).toEqual(['stopped', 1]);
    expect(events.filter(({ event }) => event === 'log')).toEqual([]);
  });

  it('does not wait for ever', async () => {
    const { run, stepSeen } = launch('saver', { steps: 1000, patience: { stopMs: 100, killMs: 100, saveMs: 100 } });
    await stepSeen();
    run.stop();
    expect((await run.done).checkpoints).toEqual([]);
  });

  it('names the rank that failed, not the peers that noticed', async () => {
    const end = await launch('fail').run.done;
    expect(end.error).toEqual({ code: 'non-finite', message: 'non-finite here', rank: 1, step: 1 });
  });

  it('ends a rank that gives no sign of life', async () => {
    const end = await launch('hang', { steps: 1000, patience: { heartbeatMs: 400 } }).run.done;
    expect(end.error).toMatchObject({ code: 'worker-died', rank: 1, step: 0 });
    expect(end.error?.message).toMatch(/no sign of life/);
  });

  it('ends a rank that never speaks', async () => {
    const end = await launch('mute', {
      patience: { firstHeartbeatMs: 1500, heartbeatMs: 200, peerMs: 100, killMs: 100 },
    }).run.done;
    expect(end.error?.code).toBe('worker-died');
  });

  it('stops after the step when asked', async () => {
    const { run, stepSeen } = launch('slow', { steps: 1000 });
    await stepSeen();
    run.stop();
    const end = await run.done;
    expect(end.status).toBe('stopped');
    expect(end.error).toBeUndefined();
    expect(end.checkpoints).toHaveLength(1);
  });

  it('waits for a step as long as steps take, whatever a stop may take otherwise', async () => {
    const { run, stepSeen } = launch('long', { steps: 1000, patience: { stopMs: 10, killMs: 10 } });
    await stepSeen();
    run.stop();
    const end = await run.done;
    expect([end.status, end.checkpoints.length]).toEqual(['stopped', 1]);
  });

  it('forces a rank that does not stop', async () => {
    const { run, events, stepSeen } = launch('deaf', { steps: 1000, patience: { stopMs: 100, killMs: 200 } });
    await stepSeen();
    run.stop();
    const end = await run.done;
    expect(end.status).toBe('stopped');
    expect(events.at(-1)).toMatchObject({
      event: 'log',
      line: expect.stringMatching(
        /did not stop by themselves and were ended: \d+ steps? (is|are) lost, since no checkpoint/,
      ),
    });
  });

  it('removes the shared memory of those who were killed, and of nobody else', async () => {
    const [dead, alive, unknown] = ['1', '2', '3'].map((n) => `/dev/shm/shard-studio-${n.repeat(18)}`);
    for (const folder of [dead, alive, unknown]) await mkdir(folder);
    try {
      await symlink('1 12345', join(dead, 'owner')); // pid 1 did not start then
      await symlink(`${process.pid} ${processStartTime(process.pid)}`, join(alive, 'owner'));
      await launch('ok', { steps: 1 }).run.done;
      expect([dead, alive, unknown].map((folder) => existsSync(folder))).toEqual([false, true, true]);
    } finally {
      for (const folder of [dead, alive, unknown]) await rm(folder, { recursive: true, force: true });
    }
  });

  it('starts nothing when stopped at once', async () => {
    const { run, events } = launch('ok');
    run.stop();
    expect((await run.done).status).toBe('stopped');
    expect(events.filter(({ event }) => event === 'step')).toEqual([]);
  });

  it('ends at once what has started and made no step, and says so', async () => {
    const { run, events } = launch('eager', { patience: { stopMs: 600_000, killMs: 600_000 } });
    while (!events.some(({ event }) => event === 'start')) await new Promise((resolve) => setTimeout(resolve, 10));
    run.stop();
    const end = await run.done;
    expect([end.status, end.error, end.checkpoints]).toEqual(['stopped', undefined, []]);
    const lines = events.flatMap((event) => (event.event === 'log' ? [event.line] : []));
    expect(lines).toEqual(['Stopped by request before its first step.']);
  });

  it('ends at once what has not begun, and says so', async () => {
    const { run, events } = launch('mute', {
      patience: { stopMs: 600_000, killMs: 600_000, firstHeartbeatMs: 600_000 },
    });
    while (!existsSync(join(runFolder, 'logs', 'worker-1.log')))
      await new Promise((resolve) => setTimeout(resolve, 10));
    run.stop();
    const end = await run.done;
    expect([end.status, end.error]).toEqual(['stopped', undefined]);
    expect(events).toEqual([{ event: 'log', rank: null, line: 'Stopped by request before its first step.' }]);
  });

  it.each([
    ['deleted', async () => undefined],
    ['replaced', async () => void (await mkdir(runFolder))],
  ])('ends a run whose folder is %s, and names it', async (_, then) => {
    const { run, stepSeen } = launch('slow', { steps: 100_000 });
    await stepSeen();
    // The other rank writes into the folder once, when it starts.
    while (!existsSync(join(runFolder, 'environment-1.json'))) await new Promise((resolve) => setTimeout(resolve, 10));
    await rm(runFolder, { recursive: true, maxRetries: 5 });
    await then();
    expect((await run.done).error).toMatchObject({
      code: 'io',
      message: expect.stringContaining(`folder ${runFolder} was`),
    });
  });

  it('refuses a worker that reports for another rank', async () => {
    const { run, events } = launch('liar');
    expect((await run.done).error).toMatchObject({
      code: 'internal',
      message: expect.stringContaining('broke the protocol'),
    });
    expect(events.some((event) => event.event === 'step' && event.rank === 7)).toBe(false);
  });

  it('says which program could not run', async () => {
    const end = await launch('ok', { entry: '/no/such/worker.ts' }).run.done;
    expect(end.error).toMatchObject({ code: 'worker-died' });
    expect(end.error?.message).toContain('/no/such/worker.ts');
  });
});
