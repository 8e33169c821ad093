import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { isSameProcess } from '../engine/node/liveness.ts';
import { expect, longConfig, SMALL_TEXT, StudioApi, test } from './studio.ts';

const project = fileURLToPath(new URL('../', import.meta.url));

/** A studio of its own, with workers that train, on a port that stays the same when it starts again. */
async function serve(dataFolder: string, port: number): Promise<ChildProcess> {
  const args = ['--import', 'tsx', 'server/cli.ts', 'serve', '--port', String(port), '--data', dataFolder];
  const env = { ...process.env, NODE_ENV: 'production' as const, NEXT_TELEMETRY_DISABLED: '1' };
  const server = spawn(process.execPath, args, { cwd: project, env, stdio: 'ignore' });
  await expect
    .poll(
      () =>
        fetch(`http://127.0.0.1:${port}/api/v1/health`).then(
          ({ ok }) => ok,
          () => false,
        ),
      { timeout: 60_000 },
    )
    .toBe(true);
  return server;
}

async function freePort(): Promise<number> {
  const probe = createServer().listen(0, '127.0.0.1');
  await once(probe, 'listening');
  const address = probe.address();
  probe.close();
  await once(probe, 'close');
  return typeof address === 'object' && address ? address.port : 0;
}

test('kill -9 of the server: a page left open tells the truth once it is back, and no worker is left', async ({
  browser,
  playwright,
}) => {
  const dataFolder = await mkdtemp(join(tmpdir(), 'shard-studio-restart-'));
  const port = await freePort();
  const baseURL = `http://127.0.0.1:${port}`;
  let server = await serve(dataFolder, port);
  const request = await playwright.request.newContext({ baseURL });
  try {
    const api = new StudioApi(request);
    const path = await api.upload('text', 'whale.txt', SMALL_TEXT);
    const { id } = await api.create(longConfig(path));
    // Not the watched page: a browser notes each request that nobody answers.
    const page = await browser.newPage({ baseURL });
    await page.goto(`/runs/${id}`);
    const bar = page.getByRole('progressbar', { name: 'Progress of the run' });
    await expect
      .poll(async () => Number(await bar.getAttribute('aria-valuenow')), { timeout: 30_000 })
      .toBeGreaterThan(2);
    const { workers } = JSON.parse(await readFile(join(dataFolder, 'runs', id, 'processes.json'), 'utf8')) as {
      workers: { pid: number; startTime: number }[];
    };
    expect(workers.length).toBeGreaterThan(0);
    server.kill('SIGKILL');
    await once(server, 'exit');
    await expect
      .poll(() => workers.some(({ pid, startTime }) => isSameProcess(pid, startTime)), { timeout: 5000 })
      .toBe(false);

    server = await serve(dataFolder, port);
    await expect(page.getByTestId('run-state')).toHaveText('failed', { timeout: 30_000 });
    await expect(page.getByRole('alert').filter({ hasText: 'worker-died' })).toBeVisible();
    expect((await api.runs()).map(({ state }) => state)).toEqual(['failed']);
    // What was reported before is still there, without a hole.
    const events = await request.get(`/api/v1/runs/${id}/events?after=0&limit=1000`);
    const { events: all } = (await events.json()) as { events: { seq: number }[] };
    expect(all.length).toBeGreaterThan(3);
    expect(all.every(({ seq }, i) => seq === i + 1)).toBe(true);
    await page.close();
  } finally {
    await request.dispose();
    server.kill('SIGTERM');
    if (server.exitCode === null && server.signalCode === null) await once(server, 'exit');
    await rm(dataFolder, { recursive: true, force: true, maxRetries: 5 });
  }
});
