import { chmod, lstat, mkdir, mkdtemp, readdir, readFile, rm, symlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { chromium } from '@playwright/test';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { firstPrivateFolder, type Member, parseTar, unpackBrowser, unpackOnce, unpackVulkan } from './vulkan-files.ts';

const member = (path: string, text: string, mode = 0o644): Member => ({ path, mode, bytes: Buffer.from(text) });

/** A ustar archive of one entry. */
function tar(path: string, text: string, type = '0', size = text.length): Uint8Array {
  const archive = Buffer.alloc(512 + Math.ceil(text.length / 512) * 512 + 1024);
  archive.write(path, 0);
  archive.write('0000755\0', 100);
  archive.write(`${size.toString(8).padStart(11, '0')}\0`, 124);
  archive.write(type, 156);
  archive.write('ustar', 257);
  archive.write(text, 512);
  return archive;
}

let cache = '';
beforeEach(async () => {
  cache = await mkdtemp(join(tmpdir(), 'unpack-'));
});
afterEach(() => rm(cache, { recursive: true }));

describe('parseTar', () => {
  test('gives the files with their modes', () => {
    const [file, ...others] = parseTar(tar('lib/a.so', 'elf'), 'a.tar');
    expect(others).toEqual([]);
    expect({ ...file, bytes: Buffer.from(file.bytes).toString() }).toEqual({
      path: 'lib/a.so',
      mode: 0o755,
      bytes: 'elf',
    });
    expect(parseTar(tar('lib/', '', '5'), 'a.tar')).toEqual([]);
  });

  test.each([
    ['a path that leaves', tar('../../etc/passwd', 'x'), /leaves the folder/],
    ['an absolute path', tar('/etc/passwd', 'x'), /leaves the folder/],
    ['a link', tar('lib/a.so', '', '2'), /neither a file nor a folder/],
    ['a cut', tar('lib/a.so', 'elf', '0', 5000), /cut short/],
  ])('refuses %s', (_, archive, message) => {
    expect(() => parseTar(archive, 'a.tar')).toThrow(message);
  });
});

describe('unpackOnce', () => {
  test('unpacks whole, once, and leaves no draft', async () => {
    let reads = 0;
    const read = async () => {
      reads += 1;
      return [member('run', '#!', 0o755), member('lib/a.so', 'elf')];
    };
    const folder = await unpackOnce(cache, 'tool', read);
    expect(await unpackOnce(cache, 'tool', read)).toBe(folder);
    expect(reads).toBe(1);
    expect(await readdir(cache)).toEqual(['tool']);
    expect((await lstat(join(folder, 'run'))).mode & 0o777).toBe(0o755);
    expect(await readFile(join(folder, 'lib/a.so'), 'utf8')).toBe('elf');
  });

  test('is safe when several do it at once', async () => {
    const read = async () => [member('a', 'x')];
    const folders = await Promise.all(Array.from({ length: 8 }, () => unpackOnce(cache, 'tool', read)));
    expect(new Set(folders).size).toBe(1);
    expect(await readdir(cache)).toEqual(['tool']);
  });

  test('leaves nothing when it fails', async () => {
    const twice = async () => [member('a', 'x'), member('a', 'y')];
    await expect(unpackOnce(cache, 'tool', twice)).rejects.toMatchObject({ code: 'io' });
    expect(await readdir(cache)).toEqual([]);
  });

  test('clears the drafts of processes that died', async () => {
    const dead = join(cache, '.draft-4194305-x');
    const alive = join(cache, `.draft-${process.pid}-x`);
    for (const draft of [dead, alive]) await mkdir(draft);
    await unpackOnce(cache, 'tool', async () => []);
    expect((await readdir(cache)).sort()).toEqual([`.draft-${process.pid}-x`, 'tool']);
  });
});

describe('firstPrivateFolder', () => {
  test('passes over a folder that others can write, and a link', async () => {
    const [open, linked, good] = ['open', 'linked', 'good'].map((name) => join(cache, name));
    await mkdir(join(open, 'shard-studio'), { recursive: true });
    await chmod(join(open, 'shard-studio'), 0o777);
    await mkdir(linked);
    await symlink(cache, join(linked, 'shard-studio'));
    expect(await firstPrivateFolder([open, linked, good])).toBe(join(good, 'shard-studio'));
    await expect(firstPrivateFolder([open, linked])).rejects.toMatchObject({
      code: 'io',
      message: expect.stringMatching(/written by others.*not a folder/),
    });
  });
});

describe('the bundled files', () => {
  test('are the loader and the software GPU', async () => {
    const { loaderPath, swiftShaderManifestPath } = await unpackVulkan();
    expect((await lstat(loaderPath)).isFile()).toBe(true);
    expect(JSON.parse(await readFile(swiftShaderManifestPath, 'utf8')).ICD.library_path).toBe('./libvk_swiftshader.so');
  });

  test('are a browser that shows a page in the bundled fonts', async () => {
    const { executablePath, env } = await unpackBrowser();
    const args = ['--no-sandbox', '--disable-gpu', '--disable-background-networking'];
    const browser = await chromium.launch({ executablePath, env: { PATH: process.env.PATH, ...env }, args });
    try {
      const page = await browser.newPage();
      await page.setContent('<span id="x" style="font: 20px sans-serif"></span><script>x.append(6 * 7)</script>');
      expect(await page.textContent('#x')).toBe('42');
      // Without any font the text has no width.
      expect((await page.locator('#x').boundingBox())?.width).toBeGreaterThan(15);
    } finally {
      await browser.close();
    }
  }, 60_000);
});
