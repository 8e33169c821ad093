import { cp, mkdir, mkdtemp, readdir, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest';
import { StudioError } from '../../engine/errors.ts';
import { convertCheckpointPath } from '../../engine/node/checkpoint-convert.ts';
import { type DataFolder, openDataFolder } from '../data-folder.ts';
import { measureCheckpoint } from '../runs/checkpoint-files.ts';
import { BroughtCheckpoints } from './brought-checkpoints.ts';
import { folderArchive } from './folder-archive.ts';
import { inspectInProcess, lookInProcess } from './look-in-process.ts';

const file = fileURLToPath(new URL('../../engine/testdata/demo-transformer/init.pt', import.meta.url));
let work: string;
let uploads: string;
let brought: BroughtCheckpoints;
let folder: DataFolder;
beforeAll(async () => {
  work = await mkdtemp(join(tmpdir(), 'brought-checkpoints-'));
  await convertCheckpointPath({ from: file, to: join(work, 'whole'), kind: 'sharded', ranks: 2 });
});
beforeEach(async () => {
  const data = join(work, 'data');
  await rm(data, { recursive: true, force: true });
  folder = await openDataFolder(data);
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

it('what fails for want of open files is not told to be damaged', async () => {
  await cp(join(work, 'whole'), join(uploads, 'mine'), { recursive: true });
  await truncate(join(uploads, 'mine', '.metadata'), 10);
  await expect(brought.getOpened('mine')).rejects.toMatchObject({ code: 'bad-file' });
  const said = 'mine cannot be read or written: too many files are open.';
  const full = new BroughtCheckpoints(folder, async ([path]) => new Map([[path, new StudioError('io', said)]]));
  await expect(full.getOpened('mine')).rejects.toMatchObject({ code: 'io', message: said });
});

it('of very many tensors all are counted and the first listed', async () => {
  const entries = Array.from({ length: 12_000 }, (_, i) => [
    `t${i}`,
    { dtype: 'F32', shape: [0], data_offsets: [0, 0] },
  ]);
  const header = Buffer.from(JSON.stringify(Object.fromEntries(entries)));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(header.length));
  const path = join(uploads, 'many.safetensors');
  await writeFile(path, Buffer.concat([length, header]));
  expect(await brought.list()).toMatchObject([{ holds: { tensors: 12_000 } }]);
  const { tensors, tensorCount } = await inspectInProcess(path, new AbortController().signal);
  expect([tensors.length, tensorCount, tensors[9_999].name]).toEqual([10_000, 12_000, 't9999']);
});

it('more looks than may wait are refused, and the others are answered', async () => {
  const staying = new AbortController().signal;
  const asked = Array.from({ length: 19 }, () =>
    lookInProcess([], staying).then(
      () => 'looked',
      ({ code }) => code,
    ),
  );
  expect(await Promise.all(asked)).toEqual([...Array(18).fill('looked'), 'conflict']);
  expect((await lookInProcess([file], staying)).get(file)).toMatchObject({ kind: 'full', tensors: [] });
});

it('what is deleted while it is looked at is gone', async () => {
  const gone = join(uploads, 'gone.ckpt');
  expect([await measureCheckpoint(gone), await brought.digest('gone.ckpt')]).toEqual([null, null]);
  await writeFile(join(uploads, 'left.sha256'), `${'0'.repeat(64)}  left/.metadata\n`);
  await expect(folderArchive(join(uploads, 'left'))).rejects.toMatchObject({ code: 'not-found' });
  await rm(join(uploads, 'left.sha256'));
  await mkdir(join(uploads, 'folder'));
  expect(await measureCheckpoint(join(uploads, 'folder'))).toEqual({ bytes: 0, stamp: '' });
  await expect(brought.get('gone.ckpt')).rejects.toMatchObject({ code: 'not-found' });
  expect(await readdir(uploads)).toEqual(['folder']);
});
