import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, openSync, writeSync } from 'node:fs';
import { mkdir, mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, it, type TestContext } from 'vitest';
import { openDataFolder } from './data-folder.ts';
import { openTestStudio, type TestStudio } from './fixtures/test-studio.ts';

let place: string;
let dataFolder: string;
let open: TestStudio | null;

beforeEach(async () => {
  place = await mkdtemp(join(tmpdir(), 'disk-'));
  dataFolder = join(place, 'data');
  open = null;
});
afterEach(async () => {
  await open?.studio.close();
  spawnSync('umount', ['-l', place]);
  await rm(place, { recursive: true, force: true });
});

function mount({ skip }: TestContext): void {
  const { status } = spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=64m', 'tmpfs', place]);
  if (status !== 0) skip('only root may mount a file system');
}

const filler = () => join(place, 'filler');

/** Takes every byte that is left. */
function fill(): void {
  const file = openSync(filler(), 'a');
  try {
    for (const bytes of [2 ** 20, 4096])
      for (let full = false; !full; ) {
        try {
          full = writeSync(file, Buffer.alloc(bytes)) < bytes;
        } catch (error) {
          if ((error as NodeJS.ErrnoException).code !== 'ENOSPC') throw error;
          full = true;
        }
      }
  } finally {
    closeSync(file);
  }
}
const makeRoom = () => rm(filler());

async function openHere(): Promise<TestStudio> {
  open = await openTestStudio({ dataFolder });
  return open;
}

const isFull = { status: 507, body: { error: { code: 'io', message: expect.stringMatching(/disk .*full/) } } };

describe('a full disk, a real one', () => {
  it('every answer that needs room says so and leaves nothing; what is only read is answered; with room all goes on', async (context) => {
    mount(context);
    const { api, studio } = await openHere();
    const { id } = await api.create({ name: 'ok', trainer: { steps: 3 } });
    await api.until(id, 'finished');
    fill();
    const upload = async (name: string, kind: string, content: Buffer = Buffer.alloc(2 ** 20, 'a')) => {
      const address = `${studio.address}/api/v1/files?kind=${kind}&name=${name}`;
      const response = await fetch(address, { method: 'POST', body: content as Uint8Array<ArrayBuffer> });
      return { status: response.status, body: await response.json() };
    };
    expect(await api.post('/runs', { config: { name: 'ok' } })).toMatchObject(isFull);
    expect(await api.post('/quick-start')).toMatchObject(isFull);
    expect(await api.get('/corpora?kind=moby-dick')).toMatchObject(isFull);
    expect(await upload('a.txt', 'text')).toMatchObject(isFull);
    expect(await upload('a.ckpt', 'weights')).toMatchObject(isFull);
    const engine = fileURLToPath(new URL('../engine/', import.meta.url));
    const archive = spawnSync('tar', ['-C', engine, '-cf', '-', 'checkpoint'], { maxBuffer: 2 ** 28 }).stdout;
    expect(await upload('a.tar', 'checkpoint', archive)).toMatchObject(isFull);
    expect(await readdir(join(dataFolder, 'runs'))).toEqual([id]);
    expect(await readdir(join(dataFolder, 'uploads'))).toEqual([]);
    for (const path of ['/health', '/runs', `/runs/${id}`, `/runs/${id}/events`, `/runs/${id}/config`, '/files'])
      expect((await api.get(path)).status, path).toBe(200);
    expect((await api.ask('DELETE', `/runs/${id}`)).status).toBe(204);
    expect((await api.get('/runs')).body).toMatchObject({ total: 0 });
    await makeRoom();
    const next = await api.create({ name: 'ok', trainer: { steps: 3 } });
    await api.until(next.id, 'finished');
  });

  it('a studio that was killed starts again: it tells how its runs ended, deletes them, and takes new ones once there is room', async (context) => {
    mount(context);
    const program = fileURLToPath(new URL('./fixtures/studio-process.ts', import.meta.url));
    const worker = fileURLToPath(new URL('./workers/fixtures/worker.ts', import.meta.url));
    const child = spawn(process.execPath, ['--import', 'tsx', program, dataFolder, worker], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const [port] = (await once(child.stdout, 'data')) as [Buffer];
    const address = `http://127.0.0.1:${String(port).trim()}/api/v1/runs`;
    const headers = { 'content-type': 'application/json' };
    const body = JSON.stringify({ config: { name: 'slow', trainer: { steps: 10_000 } } });
    const { id } = (await (await fetch(address, { method: 'POST', headers, body })).json()) as { id: string };
    while (((await (await fetch(`${address}/${id}`)).json()) as { stepsDone: number }).stepsDone < 2);
    fill();
    child.kill('SIGKILL');
    await once(child, 'exit');
    fill();

    const { api } = await openHere();
    expect((await api.get(`/runs/${id}`)).body).toMatchObject({ state: 'failed', error: { code: 'worker-died' } });
    expect(await api.post('/runs', { config: { name: 'ok' } })).toMatchObject(isFull);
    expect((await api.ask('DELETE', `/runs/${id}`)).status).toBe(204);
    await makeRoom();
    const next = await api.create({ name: 'ok', trainer: { steps: 3 } });
    await api.until(next.id, 'finished');
    expect(await readdir(dataFolder)).toContain('reserve');
  });

  it('one that is full before the first start is refused by name', async (context) => {
    mount(context);
    fill();
    await expect(openHere()).rejects.toMatchObject({
      code: 'io',
      message: expect.stringMatching(
        /^The data folder .*disk-.*data cannot be used: its disk is full\. Choose another/,
      ),
    });
  });
});

describe('a data folder that takes no file', () => {
  const readOnly = () => spawnSync('mount', ['-o', 'remount,ro', place]);
  const refusal = {
    code: 'io',
    message: expect.stringMatching(
      /^The data folder .*data cannot be used: it is read-only for this user\. Choose another/,
    ),
  };

  it('is refused by name where it is there, and where it would have to be made', async (context) => {
    mount(context);
    await openDataFolder(dataFolder);
    readOnly();
    await expect(openHere()).rejects.toMatchObject(refusal);
    await expect(openTestStudio({ dataFolder: join(place, 'other', 'data') })).rejects.toMatchObject(refusal);
  });

  it('a file in its place is named', async () => {
    await mkdir(dataFolder);
    await expect(openTestStudio({ dataFolder: fileURLToPath(import.meta.url) })).rejects.toMatchObject({ code: 'io' });
  });
});
