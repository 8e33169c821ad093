import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, open, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { createFileSink, isWholeFile, readDigest, removeLeftovers, verifyFile } from './whole-file.ts';

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'whole-file-'));
});
afterEach(async () => {
  vi.restoreAllMocks();
  await rm(folder, { recursive: true, force: true });
});

const CONTENT = new TextEncoder().encode('a checkpoint of few words');
const names = async () => (await readdir(folder)).sort();

async function save(path: string, content = CONTENT) {
  const sink = await createFileSink(path);
  await sink.write(content.subarray(0, 5));
  await sink.write(content.subarray(5));
  return sink.commit();
}

/** Makes the next call of a file handle's method fail as the operating system would. */
async function failOnce(method: 'write' | 'sync', code: string): Promise<void> {
  const handle = await open(folder, 'r');
  const prototype = Object.getPrototypeOf(handle) as typeof handle;
  await handle.close();
  vi.spyOn(prototype, method).mockRejectedValueOnce(Object.assign(new Error(code), { code }));
}

describe('writing', () => {
  test('the file appears with its digest, in the form of sha256sum, and nothing else stays', async () => {
    const path = join(folder, 'step-000010.ckpt');
    const written = await save(path);
    const sha256 = createHash('sha256').update(CONTENT).digest('hex');
    expect(written).toEqual({ path, bytes: CONTENT.length, sha256 });
    expect(await readFile(path)).toEqual(Buffer.from(CONTENT));
    expect(await readFile(`${path}.sha256`, 'utf8')).toBe(`${sha256}  step-000010.ckpt\n`);
    expect(await names()).toEqual(['step-000010.ckpt', 'step-000010.ckpt.sha256']);
    expect(await verifyFile(path)).toBe(sha256);
  });

  test('what a killed writer of the same file left goes when it is written again; what a living one writes stays', async () => {
    const program = fileURLToPath(new URL('./fixtures/save-files.ts', import.meta.url));
    const child = spawn(process.execPath, ['--import', 'tsx', program, folder], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const isPart = (name: string) => name.includes('.part-');
    let parts: string[] = [];
    while (parts.length === 0) parts = (await names()).filter(isPart);
    child.kill('SIGSTOP');
    const path = join(folder, 'a.ckpt');
    const living = await createFileSink(path);
    const others = parts.map((name) => name.replace(/^step-\d+\.ckpt/, 'a.ckpt'));
    for (const name of others) await writeFile(join(folder, name), '');
    await (await createFileSink(path)).abort();
    expect(await names()).toEqual(expect.arrayContaining(others));
    child.kill('SIGKILL');
    await once(child, 'exit');
    await (await createFileSink(path)).abort();
    expect((await names()).filter((name) => isPart(name) && name.startsWith('a.'))).toHaveLength(1);
    await living.abort();
  });

  test('until commit there is no file of that name; abort leaves nothing', async () => {
    const path = join(folder, 'a.ckpt');
    const sink = await createFileSink(path);
    await sink.write(CONTENT);
    expect(await names()).toEqual([expect.stringMatching(/^a\.ckpt\.part-/)]);
    expect(await isWholeFile(path)).toBe(false);
    await sink.abort();
    expect(await names()).toEqual([]);
    await expect(sink.write(CONTENT)).rejects.toMatchObject({ code: 'internal' });
    await expect(sink.commit()).rejects.toMatchObject({ code: 'internal' });
  });

  test('abort after commit does nothing', async () => {
    const sink = await createFileSink(join(folder, 'a.ckpt'));
    await sink.commit();
    await sink.abort();
    expect(await isWholeFile(join(folder, 'a.ckpt'))).toBe(true);
  });

  test('a whole file is never overwritten; a part of one is', async () => {
    const path = join(folder, 'a.ckpt');
    await save(path);
    await expect(createFileSink(path)).rejects.toMatchObject({ code: 'conflict' });
    await rm(`${path}.sha256`);
    const other = new TextEncoder().encode('another content');
    await save(path, other);
    expect(await readFile(path)).toEqual(Buffer.from(other));
    await verifyFile(path);
  });

  test('a digest without its file never stands beside another content', async () => {
    const path = join(folder, 'a.ckpt');
    await writeFile(`${path}.sha256`, `${'0'.repeat(64)}  a.ckpt\n`);
    expect(await isWholeFile(path)).toBe(false);
    await save(path);
    await verifyFile(path);
  });

  test('a folder that is not there is said by name', async () => {
    await expect(createFileSink(join(folder, 'none', 'a.ckpt'))).rejects.toMatchObject({ code: 'not-found' });
    await writeFile(join(folder, 'file'), '');
    await expect(createFileSink(join(folder, 'file', 'a.ckpt'))).rejects.toMatchObject({ code: 'io' });
  });

  test('a full disk is an error with its reason, and after abort nothing stays', async () => {
    const sink = await createFileSink(join(folder, 'a.ckpt'));
    await failOnce('write', 'ENOSPC');
    // Written beside the writer, who hears of it when it goes on, and in any case at the end.
    const writing = async () => {
      for (;;) await sink.write(new Uint8Array(2 ** 20));
    };
    await expect(writing()).rejects.toMatchObject({
      code: 'io',
      message: expect.stringMatching(/a\.ckpt .*disk is full/),
    });
    await sink.abort();
    expect(await names()).toEqual([]);
    const other = await createFileSink(join(folder, 'a.ckpt'));
    await failOnce('write', 'ENOSPC');
    await other.write(CONTENT);
    await expect(other.commit()).rejects.toThrow(/disk is full/);
    expect(await names()).toEqual([]);
  });

  test('a disk that fails at the last moment leaves nothing, neither file nor digest', async () => {
    const sink = await createFileSink(join(folder, 'a.ckpt'));
    await sink.write(CONTENT);
    await failOnce('sync', 'EIO');
    await expect(sink.commit()).rejects.toMatchObject({ code: 'io', details: { code: 'EIO' } });
    expect(await names()).toEqual([]);
  });

  test('a changed byte is found by the digest', async () => {
    const path = join(folder, 'a.ckpt');
    await save(path);
    await writeFile(path, 'a checkpoint of few lords');
    await expect(verifyFile(path)).rejects.toThrow(/has changed since it was written/);
    await rm(`${path}.sha256`);
    await expect(verifyFile(path)).rejects.toThrow(/no digest beside it/);
    expect(await readDigest(path)).toBeNull();
  });
});

describe('killed', () => {
  test('what is left over is removed, what is whole stays', async () => {
    await save(join(folder, 'step-1.ckpt'));
    for (const name of [
      'step-2.ckpt.part-0a',
      'step-3.ckpt',
      'step-4.ckpt.sha256',
      'step-4.ckpt.sha256.part-1b',
      'notes.txt',
    ]) {
      await writeFile(join(folder, name), 'x');
    }
    const removed = await removeLeftovers(folder, '.ckpt');
    expect(removed.sort()).toEqual([
      'step-2.ckpt.part-0a',
      'step-3.ckpt',
      'step-4.ckpt.sha256',
      'step-4.ckpt.sha256.part-1b',
    ]);
    expect(await names()).toEqual(['notes.txt', 'step-1.ckpt', 'step-1.ckpt.sha256']);
  });

  test('kill -9 in the middle of saving: every file that counts as whole is whole', async () => {
    const writer = spawn(
      process.execPath,
      ['--import', 'tsx', new URL('./fixtures/save-files.ts', import.meta.url).pathname, folder],
      {
        stdio: ['ignore', 'pipe', 'inherit'],
      },
    );
    await once(writer.stdout, 'data'); // the first file is whole
    await new Promise((resolve) => setTimeout(resolve, 120));
    writer.kill('SIGKILL');
    await once(writer, 'exit');
    const whole = [];
    for (const name of await names()) {
      if (name.endsWith('.ckpt') && (await isWholeFile(join(folder, name)))) whole.push(name);
    }
    expect(whole.length).toBeGreaterThan(0);
    for (const name of whole) await verifyFile(join(folder, name));
    await removeLeftovers(folder, '.ckpt');
    expect(await names()).toEqual(whole.flatMap((name) => [name, `${name}.sha256`]).sort());
  });
});
