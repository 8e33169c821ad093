import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { commitCheckpointFolder } from '../../engine/node/checkpoint-folder.ts';
import { sha256OfFile } from '../../engine/node/digested-file.ts';
import { safeStem } from './checkpoint-names.ts';
import { folderArchive } from './folder-archive.ts';
import { NAME_BYTES } from './tar-format.ts';
import { unpackArchive } from './unpack-archive.ts';

let work: string;
beforeAll(async () => {
  work = await mkdtemp(join(tmpdir(), 'folder-archive-'));
});
afterAll(() => rm(work, { recursive: true, force: true }));

const FILES = ['.metadata', '__0_0.distcp', `${'f'.repeat(NAME_BYTES - 7)}.distcp`];

async function committed(name: string): Promise<string> {
  const draft = join(work, 'draft');
  await mkdir(draft);
  for (const file of FILES) await writeFile(join(draft, file), `what is in ${file}`);
  const files = await Promise.all(
    FILES.map(async (file) => ({
      name: file,
      bytes: Buffer.byteLength(`what is in ${file}`),
      sha256: await sha256OfFile(join(draft, file)),
    })),
  );
  await commitCheckpointFolder(draft, join(work, name), files);
  return join(work, name);
}

it('a folder of the longest name that is given here is downloaded, and read again by this studio and by tar', async () => {
  const name = `${safeStem('漢'.repeat(60), 'none')}-9999`;
  const folder = await committed(name);
  const archive = await folderArchive(folder);
  const into = join(work, 'unpacked');
  const unpacked = await unpackArchive(archive.read(0, archive.bytes - 1), into, 2 ** 20);
  expect(unpacked.folder).toBe(name);
  expect(unpacked.files.map((file) => file.name).sort()).toEqual([...FILES].sort());
  expect([...unpacked.digests!]).toEqual(unpacked.files.map((file) => [file.name, file.sha256]));

  const parts: Buffer[] = [];
  for await (const part of archive.read(0, archive.bytes - 1)) parts.push(part);
  await writeFile(join(work, 'a.tar'), Buffer.concat(parts));
  await mkdir(join(work, 'by-tar'));
  await promisify(execFile)('tar', ['-xf', join(work, 'a.tar'), '-C', join(work, 'by-tar')]);
  for (const file of FILES) expect(await readFile(join(work, 'by-tar', name, file), 'utf8')).toBe(`what is in ${file}`);
  expect(await readFile(join(work, 'by-tar', `${name}.sha256`))).toEqual(await readFile(`${folder}.sha256`));
});

it('a folder whose name has no room in an archive is refused with what to do', async () => {
  const folder = await committed('漢'.repeat(60));
  await expect(folderArchive(folder)).rejects.toMatchObject({
    code: 'bad-file',
    message: expect.stringMatching(/too long for an archive. Give the checkpoint a shorter one/),
  });
});
