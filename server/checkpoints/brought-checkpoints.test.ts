import { cp, mkdir, mkdtemp, readdir, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest';
import { convertCheckpointPath } from '../../engine/node/checkpoint-convert.ts';
import { openDataFolder } from '../data-folder.ts';
import { measureCheckpoint } from '../runs/checkpoint-files.ts';
import { BroughtCheckpoints } from './brought-checkpoints.ts';

const file = fileURLToPath(new URL('../../engine/testdata/demo-transformer/init.pt', import.meta.url));
let work: string;
let uploads: string;
let brought: BroughtCheckpoints;
beforeAll(async () => {
  work = await mkdtemp(join(tmpdir(), 'brought-checkpoints-'));
  await convertCheckpointPath({ from: file, to: join(work, 'whole'), kind: 'sharded', ranks: 2 });
});
beforeEach(async () => {
  const data = join(work, 'data');
  await rm(data, { recursive: true, force: true });
  const folder = await openDataFolder(data);
  uploads = folder.uploads;
  brought = new BroughtCheckpoints(folder);
});
afterAll(() => rm(work, { recursive: true, force: true }));

it('a folder seen half copied is whole when it is', async () => {
  const copy = join(uploads, 'mine');
  await cp(join(work, 'whole'), copy, { recursive: true });
  await truncate(join(copy, '.metadata'), 10);
  expect(await brought.list()).toMatchObject([{ name: 'mine', holds: null, problem: expect.any(String) }]);
  await writeFile(join(copy, '.metadata'), await readFile(join(work, 'whole', '.metadata')));
  expect(await brought.list()).toMatchObject([{ name: 'mine', holds: { kind: 'sharded' }, problem: null }]);
  await truncate(join(copy, '.metadata'), 10);
  expect(await brought.list()).toMatchObject([{ holds: null }]);
});

it('what is deleted while it is looked at is gone', async () => {
  const gone = join(uploads, 'gone.ckpt');
  expect([await measureCheckpoint(gone), await brought.digest('gone.ckpt')]).toEqual([null, null]);
  await mkdir(join(uploads, 'folder'));
  expect(await measureCheckpoint(join(uploads, 'folder'))).toEqual({ bytes: 0, stamp: '' });
  await expect(brought.get('gone.ckpt')).rejects.toMatchObject({ code: 'not-found' });
  expect(await readdir(uploads)).toEqual(['folder']);
});
