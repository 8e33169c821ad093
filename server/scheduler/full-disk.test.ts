import { mkdir, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { openDataFolder } from '../data-folder.ts';
import type { StudioDb } from '../db/client.ts';
import type { RunRow, RunStore } from '../runs/run-store.ts';
import { Scheduler } from './scheduler.ts';

const id = 'mhx000000-000000';
let place: string;

beforeEach(async () => {
  place = await mkdtemp(join(tmpdir(), 'full-disk-'));
});
afterEach(() => rm(place, { recursive: true }));

/** A scheduler over one finished run, whose row the database refuses to delete while `refusal` gives an error. */
async function openScheduler(refusal: () => Error | null) {
  const folder = await openDataFolder(place);
  await mkdir(join(folder.runs, id));
  await writeFile(join(folder.runs, id, 'run.json'), '{}');
  const store: Pick<RunStore, 'get' | 'delete'> = {
    get: async () => ({ id, state: 'finished', lastSeq: 1 }) as RunRow,
    delete: async () => {
      const error = refusal();
      if (error) throw error;
    },
  };
  const log = pino({ level: 'silent' });
  const options = { db: {} as StudioDb, store: store as RunStore, folder, adapters: async () => [], log };
  return { scheduler: new Scheduler({ ...options, onNews: () => undefined }), files: () => readdir(folder.runs) };
}

it('on a full disk a deleted run gives its files back first, and is then forgotten', async () => {
  let tries = 0;
  const opened = await openScheduler(() => (tries++ === 0 ? new Error('SQLITE_FULL: database or disk is full') : null));
  await opened.scheduler.remove(id);
  expect(await opened.files()).toEqual([]);
  expect(tries).toBe(2);
});

it('a run that the database does not forget for another reason keeps its files', async () => {
  const { scheduler, files } = await openScheduler(() => new Error('a disk error'));
  await expect(scheduler.remove(id)).rejects.toThrow('a disk error');
  expect(await files()).toEqual([id]);
});

it('a start that finds the disk full names the data folder and the way out', async () => {
  const { scheduler, files } = await openScheduler(() => new Error('SQLITE_FULL: database or disk is full'));
  await mkdir(join(place, 'runs', `.deleted-${id}`));
  await expect(scheduler.start()).rejects.toMatchObject({
    code: 'io',
    message: expect.stringMatching(/^The disk of the data folder .*full-disk-.* is full, .* Make room/),
  });
  expect(await files()).toContain(`.deleted-${id}`);
});
