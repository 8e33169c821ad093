import { mkdir, mkdtemp, readdir, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { checkWrittenFiles, type ReadFile } from './written-file.ts';

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'written-'));
  await writeFile(join(folder, 'mine'), 'mine');
  await mkdir(join(folder, 'made'));
});
afterEach(() => rm(folder, { recursive: true }));

const check = (files: Record<string, string>, made: string | null = null, replaces = true, read: ReadFile[] = []) =>
  checkWrittenFiles(
    Object.entries(files).map(([option, file]) => ({ option, file, replaces })),
    read,
    made,
  );

it('lets pass what can be written, and leaves nothing behind', async () => {
  await check({ '--report': join(folder, 'r'), '--trace': join(folder, 'made/t'), '--weights': join(folder, 'mine') });
  await check({ '--report': '/dev/null' });
  await check({ '--report': join(folder, 'run/r') }, join(folder, 'run'));
  expect((await readdir(folder, { recursive: true })).sort()).toEqual(['made', 'mine']);
});

it.each([
  ['nowhere/f', /there is no folder .*nowhere\. Make it, or name another\.$/],
  ['mine/f', /there is no folder .*mine\. Make it, or name another\.$/],
  ['made', /that is a folder\. Name a file in it\.$/],
  ['/proc/f', /it cannot be written, since the system says ENOENT\. Name another\.$/],
  ['f'.repeat(300), /it cannot be written, since the system says ENAMETOOLONG\. Name another\.$/],
])('refuses %s', async (name, says) => {
  const file = name.startsWith('/') ? name : join(folder, name);
  const refused = await check({ '--report': file }).catch((error: unknown) => error);
  expect(refused).toMatchObject({ code: 'invalid-config', message: expect.stringMatching(says) });
  expect((refused as Error).message.startsWith(`--report ${file}: `)).toBe(true);
});

it('refuses a file that would be lost, and one that two options name', async () => {
  const mine = join(folder, 'mine');
  await expect(check({ '--weights': mine }, null, false)).rejects.toThrow(/a file is there, which would be lost/);
  const twice = { '--report': join(folder, 'a'), '--trace': `${folder}/./a` };
  await expect(check(twice)).rejects.toThrow(/^--trace .*: --report names the same file\. Name another\.$/);
});

it('refuses what the command reads, by another name too, and what would lie in a folder that it reads', async () => {
  await symlink(join(folder, 'mine'), join(folder, 'link'));
  const read = [
    { name: 'the config', file: join(folder, 'mine') },
    { name: 'checkpoint.resume', file: join(folder, 'made') },
  ];
  for (const [file, name] of [
    ['mine', 'the config'],
    ['link', 'the config'],
    ['made/new', 'checkpoint.resume'],
  ])
    await expect(check({ '--report': join(folder, file) }, null, true, read)).rejects.toThrow(
      new RegExp(`^--report .*${file}: ${name} is read from there\\. Name another\\.$`),
    );
  await check({ '--report': join(folder, 'other') }, null, true, read);
});
