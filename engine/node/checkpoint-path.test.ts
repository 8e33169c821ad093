import { mkdir, mkdtemp, rename, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { convertCheckpointPath } from './checkpoint-convert.ts';
import { openCheckpointPath } from './checkpoint-path.ts';
import { type FileVerdict, verifyCheckpoint } from './checkpoint-verify.ts';
import { inspectCheckpoint, inspectTensor } from './inspect-checkpoint.ts';

const weights = fileURLToPath(new URL('../testdata/zoo.pt', import.meta.url));
let work: string;
let folder: string;
beforeAll(async () => {
  work = await mkdtemp(join(tmpdir(), 'checkpoint-path-'));
  folder = join(work, 'sharded');
  await convertCheckpointPath({ from: weights, to: folder, kind: 'sharded', ranks: 2 });
});
afterAll(() => rm(work, { recursive: true, force: true }));

it('no reader of a folder follows a link out of it, whatever it is called', async () => {
  const shard = join(folder, '__1_0.distcp');
  const elsewhere = join(work, 'elsewhere');
  const readers: (() => Promise<unknown>)[] = [
    () => openCheckpointPath(folder),
    () => inspectCheckpoint(folder),
    () => inspectTensor(folder, 'anything'),
    () => verifyCheckpoint(folder),
    () => convertCheckpointPath({ from: folder, to: join(work, 'out.ckpt'), kind: 'full' }),
  ];
  const refused = async (name: string) => {
    for (const read of readers)
      await expect(read()).rejects.toMatchObject({
        code: 'bad-file',
        message: expect.stringContaining(`${name} is a`),
      });
  };
  await rename(shard, elsewhere);
  await symlink(elsewhere, shard);
  await refused('__1_0.distcp');
  await rm(shard);
  await rename(elsewhere, shard);
  await symlink('/etc/passwd', join(folder, 'notes'));
  await refused('notes');
  await rm(join(folder, 'notes'));
  await mkdir(join(folder, 'logs'));
  const { checkpoint, close } = await openCheckpointPath(folder);
  expect(checkpoint.kind).toBe('sharded');
  await close();
  await rm(join(folder, 'logs'), { recursive: true });
});

it('a verification looks at every file, says what each is, and counts what it reads', async () => {
  const verdicts: FileVerdict[] = [];
  let readBytes = 0;
  const watch = { onFile: (verdict: FileVerdict) => verdicts.push(verdict), onRead: (n: number) => (readBytes += n) };
  const { bytes, files } = await inspectCheckpoint(folder);
  expect(await verifyCheckpoint(folder, watch)).toEqual({ kind: 'sharded', digests: true });
  expect(verdicts.map(({ name, problem }) => [name, problem])).toEqual(
    ['.metadata', '__0_0.distcp', '__1_0.distcp', 'meta.pt'].map((name) => [name, null]),
  );
  expect([readBytes, files.length]).toEqual([bytes, 4]);

  verdicts.length = 0;
  await writeFile(join(folder, '__0_0.distcp'), 'other');
  await writeFile(join(folder, 'notes'), 'of nobody');
  await expect(verifyCheckpoint(folder, watch)).rejects.toThrow(/holds notes, which is not on its list/);
  expect(verdicts.filter(({ problem }) => problem).map(({ name, problem }) => [name, problem?.code])).toEqual([
    ['notes', 'bad-file'],
    ['__0_0.distcp', 'bad-file'],
  ]);
  expect(verdicts).toHaveLength(5);
});
