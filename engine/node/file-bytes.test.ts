import { execFileSync } from 'node:child_process';
import { mkdtemp, rm, symlink, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { openFileSource } from './file-bytes.ts';

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'file-bytes-'));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

const CONTENT = new TextEncoder().encode('a checkpoint of few words');

describe('reading', () => {
  test('a pipe that nobody writes to is no file, and is not waited for', async () => {
    const path = join(folder, 'pipe');
    execFileSync('mkfifo', [path]);
    await expect(openFileSource(path)).rejects.toThrow(`${path} is not a file`);
  });

  test('anywhere in the file, never beyond it', async () => {
    await writeFile(join(folder, 'a'), CONTENT);
    const source = await openFileSource(join(folder, 'a'));
    expect(source.bytes).toBe(CONTENT.length);
    expect(await source.read(2, 10)).toEqual(CONTENT.subarray(2, 12));
    expect(await source.read(CONTENT.length, 0)).toEqual(new Uint8Array(0));
    await expect(source.read(20, 10)).rejects.toMatchObject({ code: 'bad-file' });
    await expect(source.read(-1, 1)).rejects.toMatchObject({ code: 'bad-file' });
    await source.close();
  });

  test('a file that shrinks meanwhile', async () => {
    await writeFile(join(folder, 'a'), CONTENT);
    const source = await openFileSource(join(folder, 'a'));
    await truncate(join(folder, 'a'), 3);
    await expect(source.read(0, 10)).rejects.toThrow(/became shorter/);
    await source.close();
  });

  test('no file, a folder, a loop', async () => {
    await expect(openFileSource(join(folder, 'none'))).rejects.toMatchObject({ code: 'not-found' });
    await expect(openFileSource(folder)).rejects.toMatchObject({ code: 'bad-file' });
    await symlink('loop', join(folder, 'loop'));
    await expect(openFileSource(join(folder, 'loop'))).rejects.toMatchObject({ code: 'io' });
  });
});
