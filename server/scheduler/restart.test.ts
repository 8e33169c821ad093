import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { isSameProcess, processStartTime } from '../../engine/node/liveness.ts';
import type { Run } from '../contract.ts';
import { openTestStudio } from '../fixtures/test-studio.ts';
import type { Traces } from '../workers/run-folder.ts';
import { endOrphans } from './recover.ts';

const program = fileURLToPath(new URL('../fixtures/studio-process.ts', import.meta.url));
let dataFolder: string;
let child: ChildProcess | null = null;

beforeEach(async () => {
  dataFolder = await mkdtemp(join(tmpdir(), 'restart-'));
});
afterEach(async () => {
  child?.kill('SIGKILL');
  await rm(dataFolder, { recursive: true, force: true });
});

/** Starts a studio in another process and asks it over HTTP. */
async function startProcess() {
  const started = spawn(process.execPath, ['--import', 'tsx', program, dataFolder], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  child = started;
  const port = await new Promise<string>((resolve) =>
    started.stdout.once('data', (text) => resolve(String(text).trim())),
  );
  const ask = async (path: string, body?: unknown) => {
    const init = body
      ? { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) }
      : {};
    return (await fetch(`http://127.0.0.1:${port}/api/v1${path}`, init)).json() as Promise<Run>;
  };
  const exited = new Promise<void>((resolve) => started.once('exit', () => resolve()));
  const training = async (id: string) => {
    while ((await ask(`/runs/${id}`)).stepsDone < 2) await new Promise((resolve) => setTimeout(resolve, 25));
  };
  return { started, ask, exited, training };
}

const traces = async (id: string): Promise<Traces> =>
  JSON.parse(await readFile(join(dataFolder, 'runs', id, 'processes.json'), 'utf8'));

async function gone({ workers }: Traces, withinMs: number): Promise<boolean> {
  for (const deadline = performance.now() + withinMs; ; await new Promise((resolve) => setTimeout(resolve, 25))) {
    if (!workers.some(({ pid, startTime }) => isSameProcess(pid, startTime))) return true;
    if (performance.now() > deadline) return false;
  }
}

describe('after the server was killed', () => {
  it('workers end by themselves, and a new server tells the truth about every run', async () => {
    const { started, ask, exited, training } = await startProcess();
    const running = await ask('/runs', { config: { name: 'slow', trainer: { steps: 1000 } } });
    const queued = await ask('/runs', { config: { name: 'ok', trainer: { steps: 2 } } });
    await training(running.id);
    const left = await traces(running.id);
    expect(left.workers).toHaveLength(2);
    expect(existsSync(left.sharedFolder)).toBe(true);
    started.kill('SIGKILL');
    await exited;
    expect(await gone(left, 3000)).toBe(true);

    const { api, close } = await openTestStudio({ dataFolder });
    const failed = (await api.get(`/runs/${running.id}`)).body as Run;
    expect(failed).toMatchObject({
      state: 'failed',
      reason: 'The server stopped while it ran.',
      error: { code: 'worker-died' },
    });
    expect(failed.stepsDone).toBeGreaterThanOrEqual(2);
    expect(existsSync(left.sharedFolder)).toBe(false);
    const { events } = (await api.get(`/runs/${running.id}/events?limit=10000`)).body as {
      events: { seq: number; event: string }[];
    };
    expect(events.map(({ seq }) => seq)).toEqual(Array.from({ length: failed.lastSeq }, (_, i) => i + 1));
    expect(events.at(-1)?.event).toBe('end');
    await api.until(queued.id, 'finished'); // nothing is lost, and it is started once
    await close();
  });

  it('a worker that does not end by itself is ended, and a checkpoint that nobody heard of is listed', async () => {
    const { started, ask, exited, training } = await startProcess();
    const { id } = await ask('/runs', { config: { name: 'orphan', trainer: { steps: 100_000 } } });
    await training(id);
    const left = await traces(id);
    const checkpoints = join(dataFolder, 'runs', id, 'checkpoints');
    await mkdir(checkpoints, { recursive: true });
    await writeFile(join(checkpoints, 'step-000007.ckpt'), 'whole');
    await writeFile(join(checkpoints, 'step-000007.ckpt.sha256'), `${'ab'.repeat(32)}  step-000007.ckpt\n`);
    await writeFile(join(checkpoints, 'step-000008.ckpt'), 'half');
    await mkdir(join(checkpoints, 'step-000009.saving-0123456789ab'));
    await writeFile(join(checkpoints, 'step-000009.saving-0123456789ab', '__0_0.distcp'), 'half');
    started.kill('SIGKILL');
    await exited;
    await new Promise((resolve) => setTimeout(resolve, 300));
    expect(await gone(left, 0)).toBe(false);

    const { api, close } = await openTestStudio({ dataFolder });
    expect(await gone(left, 0)).toBe(true);
    const run = (await api.get(`/runs/${id}`)).body as Run;
    expect(run).toMatchObject({ state: 'failed', checkpoints: [{ name: 'step-000007.ckpt', step: 7, bytes: 5 }] });
    expect(run.checkpoints).toHaveLength(1);
    expect((await readdir(checkpoints)).sort()).toEqual(['step-000007.ckpt', 'step-000007.ckpt.sha256']);
    await close();
  });
});

describe('a server that is asked to end', () => {
  it('stops its runs with a checkpoint, keeps the queue, and leaves nothing behind', async () => {
    const { started, ask, exited, training } = await startProcess();
    const running = await ask('/runs', {
      config: { name: 'slow', trainer: { steps: 1000 }, checkpoint: { atEnd: false } },
    });
    const queued = await ask('/runs', { config: { name: 'slow', trainer: { steps: 2 } } });
    await training(running.id);
    const left = await traces(running.id);
    started.kill('SIGTERM');
    await exited;
    expect(await gone(left, 0)).toBe(true);
    expect(existsSync(left.sharedFolder)).toBe(false);
    expect(existsSync(join(dataFolder, 'server.lock'))).toBe(false);

    const { api, close } = await openTestStudio({ dataFolder });
    expect((await api.get(`/runs/${running.id}`)).body).toMatchObject({
      state: 'stopped',
      reason: 'The studio was shut down.',
      checkpoints: [{ format: 'full' }],
    });
    await api.until(queued.id, 'finished');
    await close();
  });
});

describe('a server that ends', () => {
  it('does not wait for connections that nobody closes', async () => {
    const { studio, close } = await openTestStudio({ dataFolder });
    const idle = connect(studio.port, '127.0.0.1');
    const half = connect(studio.port, '127.0.0.1');
    half.write('GET /api/v1/health HTTP/1.1\r\nHost: ');
    const socket = connect(studio.port, '127.0.0.1');
    socket.write(
      `GET /socket.io/?EIO=4&transport=websocket HTTP/1.1\r\nHost: 127.0.0.1:${studio.port}\r\nUpgrade: websocket\r\n` +
        'Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n',
    );
    await new Promise((resolve) => socket.once('data', resolve));
    for (const each of [idle, half, socket]) each.on('error', () => undefined);
    const closed = close().then(() => 'closed');
    expect(await Promise.race([closed, new Promise((resolve) => setTimeout(resolve, 8000, 'still open'))])).toBe(
      'closed',
    );
    for (const each of [idle, half, socket]) each.destroy();
  });
});

describe('a second server', () => {
  it('does not start on the same data folder, and says who has it', async () => {
    const first = await openTestStudio({ dataFolder });
    await expect(openTestStudio({ dataFolder })).rejects.toThrow(new RegExp(`process ${process.pid}.*--data`));
    await first.close();
    const second = await openTestStudio({ dataFolder });
    await second.close();
  });

  it('does not start on a port in use, says which, and gives the data folder back', async () => {
    const first = await openTestStudio();
    const { port } = first.studio;
    const start = openTestStudio({ dataFolder, port });
    await expect(start).rejects.toMatchObject({ code: 'port-in-use' });
    await expect(openTestStudio({ dataFolder, port })).rejects.toThrow(new RegExp(`Port ${port}.*--port ${port + 1}`));
    await first.close();
    await (await openTestStudio({ dataFolder, port })).close();
  });
});

describe('endOrphans', () => {
  it('never signals a stranger who has the pid now', async () => {
    const stranger = spawn('sleep', ['60']);
    const pid = stranger.pid as number;
    const startTime = (processStartTime(pid) as number) - 1;
    await writeFile(
      join(dataFolder, 'processes.json'),
      JSON.stringify({ sharedFolder: '/dev/shm/none', workers: [{ pid, startTime }] }),
    );
    expect(await endOrphans(dataFolder)).toBe(0);
    expect(processStartTime(pid)).toBe(startTime + 1);
    expect(existsSync(join(dataFolder, 'processes.json'))).toBe(false);
    stranger.kill('SIGKILL');
  });

  it('removes no folder that is not a shared one of ours', async () => {
    const precious = join(dataFolder, 'precious');
    await mkdir(precious);
    for (const sharedFolder of [precious, '/dev/shm', `/dev/shm/../..${precious}`, '/dev/shm/shard-studio-../x']) {
      await writeFile(join(dataFolder, 'processes.json'), JSON.stringify({ sharedFolder, workers: [] }));
      await endOrphans(dataFolder);
    }
    expect(existsSync(precious)).toBe(true);
    expect(existsSync('/dev/shm')).toBe(true);
  });
});
