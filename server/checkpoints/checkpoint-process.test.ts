import { copyFile, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { request } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { openTestStudio, type TestStudio } from '../fixtures/test-studio.ts';
import { READING_BOUNDS, verifyInProcess } from './checkpoint-process.ts';

const zoo = fileURLToPath(new URL('../../engine/testdata/zoo.pt', import.meta.url));
const staying = new AbortController().signal;
let work: string;
let changed: string;
beforeAll(async () => {
  work = await mkdtemp(join(tmpdir(), 'checkpoint-process-'));
  changed = join(work, 'changed.pt');
  await copyFile(zoo, changed);
  await writeFile(`${changed}.sha256`, `${'0'.repeat(64)}  changed.pt\n`);
});
afterAll(() => rm(work, { recursive: true, force: true }));

/** Processes that this one started to read a checkpoint. */
async function children(): Promise<number[]> {
  const all = (await readFile(`/proc/self/task/${process.pid}/children`, 'utf8'))
    .split(' ')
    .filter(Boolean)
    .map(Number);
  const commands = await Promise.all(all.map((pid) => readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '')));
  return all.filter((_, i) => commands[i].includes('checkpoint-worker'));
}

async function last(path: string, signal: AbortSignal, bounds = READING_BOUNDS) {
  let line: unknown = null;
  for await (const said of verifyInProcess(path, signal, bounds)) line = said;
  expect(await children()).toEqual([]);
  return line;
}
const failed = (code: string, message: RegExp) => ({
  type: 'failed',
  error: { code, message: expect.stringMatching(message) },
});

it('says what became of it, and is gone then', async () => {
  expect(await last(zoo, staying)).toEqual({ type: 'verified', kind: 'full', digests: false });
  expect(await last(join(work, 'none'), staying)).toEqual(failed('not-found', /none is not there/));
  expect(await last(changed, staying)).toEqual(failed('bad-file', /changed.pt has changed since it was written/));
}, 60_000);

it('is ended when it takes too long, or too much memory, or dies', async () => {
  expect(await last(zoo, staying, { ...READING_BOUNDS, allMs: 1 })).toEqual(
    failed('timeout', /not read within 0.001 s/),
  );
  expect(await last(zoo, staying, { ...READING_BOUNDS, lineMs: 1 })).toEqual(
    failed('timeout', /could be read for 0.001 s/),
  );
  expect(await last(zoo, staying, { ...READING_BOUNDS, memoryBytes: 2 ** 20 })).toEqual(
    failed('too-large', /more than 1 MiB of memory/),
  );
  const lines = verifyInProcess(zoo, staying);
  const first = lines.next();
  await expect.poll(children).toHaveLength(1);
  for (const pid of await children()) process.kill(pid, 'SIGKILL');
  expect((await first).value).toEqual(failed('worker-died', /ended by somebody/));
}, 60_000);

it('ends when nobody waits for it any more', async () => {
  const leaving = new AbortController();
  const lines = verifyInProcess(zoo, leaving.signal);
  await lines.next();
  leaving.abort();
  expect((await lines.next()).done).toBe(true);
  expect(await children()).toEqual([]);
});

/** Brings a file and leaves once the studio reads it through; the studio is asked for other things meanwhile. */
async function bringAndLeave(test: TestStudio): Promise<void> {
  const { port } = test.studio;
  const path = '/api/v1/files?kind=checkpoint&name=mine.pt';
  const sent = request({ host: '127.0.0.1', port, method: 'POST', path });
  sent.on('error', () => undefined);
  let answered = false;
  sent.on('response', () => {
    answered = true;
  });
  sent.end(await readFile(zoo));
  await expect.poll(children, { timeout: 20_000, interval: 10 }).toHaveLength(1);
  // It hangs over the file, and the server is there for others.
  for (const pid of await children()) process.kill(pid, 'SIGSTOP');
  expect((await test.api.get('/health')).status).toBe(200);
  expect((await test.api.get('/checkpoints')).body).toEqual({ checkpoints: [] });
  expect([answered, await children()]).toEqual([false, [expect.any(Number)]]);
  sent.destroy();
  await expect.poll(children, { timeout: 20_000 }).toEqual([]);
}

it('a file that is brought is read there: the server answers others meanwhile, and leaves nothing when its sender goes', async () => {
  const test = await openTestStudio();
  try {
    await bringAndLeave(test);
    await expect.poll(() => readdir(join(test.dataFolder, 'uploads'))).toEqual([]);
  } finally {
    await test.close();
  }
}, 120_000);
