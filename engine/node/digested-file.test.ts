import { createHash } from 'node:crypto';
import { truncateSync } from 'node:fs';
import { mkdtemp, open, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { seededRandom } from '../ops/kernel-case.ts';
import { DigestedFile, sha256OfFile } from './digested-file.ts';
import { sha256, sha256OnThisThread } from './sha256.ts';

const MIB = 2 ** 20;

let folder: string;
let path: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'digested-file-'));
  path = join(folder, 'a');
});
afterEach(async () => {
  vi.restoreAllMocks();
  await rm(folder, { recursive: true, force: true });
});

const random = seededRandom(1);
const bytesOf = (length: number) => Uint8Array.from({ length }, () => random() * 256);
const expected = (...chunks: Uint8Array[]) => {
  const hash = createHash('sha256');
  for (const chunk of chunks) hash.update(chunk);
  return hash.digest('hex');
};
/** Small ones, large ones, none, and a view in the middle of its memory. */
const CHUNKS = [0, 1, 63, 64, 65_535, 65_536, 3 * MIB + 1, 7, 300_000].map(bytesOf);
CHUNKS.push(CHUNKS[6].subarray(12_345, 2_000_001));

/** The methods of every file handle. */
async function handles() {
  const handle = await open(folder, 'r');
  const prototype = Object.getPrototypeOf(handle) as typeof handle;
  await handle.close();
  return prototype;
}
const failure = (code: string) => Object.assign(new Error(code), { code });

describe('a digest', () => {
  test.each([
    ['in the pool', sha256],
    ['on this thread', sha256OnThisThread],
  ])('%s is that of node:crypto', async (_, make) => {
    const hash = make();
    for (const chunk of CHUNKS) await hash.update(chunk);
    expect(hash.digest()).toBe(expected(...CHUNKS));
    expect(make().digest()).toBe(expected());
  });

  test('this thread goes on while it is computed', async () => {
    const order: string[] = [];
    setImmediate(() => order.push('another turn'));
    const hash = sha256();
    await hash.update(new Uint8Array(16 * MIB));
    order.push('hashed');
    hash.discard();
    hash.discard();
    expect(order).toEqual(['another turn', 'hashed']);
  });

  test('of bytes that nobody else holds any more', async () => {
    setFlagsFromString('--expose-gc');
    const collect = runInNewContext('gc') as () => void;
    const hash = sha256();
    // In a function of its own, so that nothing here holds what it was given.
    const begin = () => hash.update(new Uint8Array(32 * MIB).fill(7));
    const updated = begin();
    await new Promise(setImmediate);
    collect();
    const others = Array.from({ length: 4 }, (_, i) => new Uint8Array(32 * MIB).fill(i));
    await updated;
    expect(hash.digest()).toBe(expected(new Uint8Array(32 * MIB).fill(7)));
    expect(others.map((other) => other[0])).toEqual([0, 1, 2, 3]);
  });

  test('several at once do not mix', async () => {
    const digests = await Promise.all(
      CHUNKS.map(async (chunk) => {
        const hash = sha256();
        await hash.update(chunk);
        await hash.update(chunk);
        return hash.digest();
      }),
    );
    expect(digests).toEqual(CHUNKS.map((chunk) => expected(chunk, chunk)));
  });
});

describe('a file that is written', () => {
  test('is there to the byte, with its digest', async () => {
    const file = await DigestedFile.create(path, { mode: 0o600 });
    for (const chunk of CHUNKS) await file.write(chunk);
    const bytes = CHUNKS.reduce((sum, chunk) => sum + chunk.length, 0);
    expect(await file.finish()).toEqual({ bytes, sha256: expected(...CHUNKS) });
    expect(Buffer.compare(await readFile(path), Buffer.concat(CHUNKS))).toBe(0);
    expect(await sha256OfFile(path)).toBe(expected(...CHUNKS));
    await expect(DigestedFile.create(path)).rejects.toMatchObject({ code: 'io' });
    await expect(DigestedFile.create(join(folder, 'no', 'a'))).rejects.toMatchObject({ code: 'not-found' });
  });

  test('waits for a slow disk with 8 MiB in hand', async () => {
    let release = () => {};
    const held = new Promise<void>((resolve) => {
      release = resolve;
    });
    const prototype = await handles();
    const { write } = prototype;
    vi.spyOn(prototype, 'write').mockImplementation(async function (this: typeof prototype, ...args: unknown[]) {
      await held;
      return (write as (...args: unknown[]) => Promise<never>).apply(this, args);
    } as never);
    const file = await DigestedFile.create(path);
    let taken = 0;
    const writing = (async () => {
      for (; taken < 12; taken++) await file.write(new Uint8Array(MIB));
    })();
    await sleep(50);
    expect(taken).toBe(8);
    release();
    await writing;
    expect((await file.finish()).bytes).toBe(12 * MIB);
  });

  test.each([
    ['write', 'ENOSPC', /^The file a cannot be read or written: the disk is full/],
    ['datasync', 'EIO', /the disk reports an error/],
    ['sync', 'EIO', /the disk reports an error/],
  ] as const)('whose %s fails with %s is not finished', async (method, code, words) => {
    const prototype = await handles();
    const spy = vi.spyOn(prototype, method).mockRejectedValueOnce(failure(code));
    const file = await DigestedFile.create(path, { called: 'The file a' });
    const writing = async () => {
      for (let i = 0; i < 70; i++) await file.write(new Uint8Array(MIB));
      await file.finish();
    };
    await expect(writing()).rejects.toThrow(words);
    await file.close();
    // Once, and nothing after it.
    expect(spy).toHaveBeenCalledTimes(1);
  });

  test('is not finished by who goes on after a failure', async () => {
    const prototype = await handles();
    vi.spyOn(prototype, 'write').mockRejectedValueOnce(failure('ENOSPC'));
    const file = await DigestedFile.create(path);
    await expect(file.write(new Uint8Array(9 * MIB))).rejects.toThrow(/disk is full/);
    await expect(file.finish()).rejects.toThrow(/disk is full/);
    await file.close();
  });

  test('a failure that nobody asks about is no unhandled one', async () => {
    const prototype = await handles();
    vi.spyOn(prototype, 'write').mockRejectedValueOnce(failure('EIO'));
    const file = await DigestedFile.create(path);
    await file.write(new Uint8Array(2 * MIB));
    await file.write(new Uint8Array(2 * MIB));
    await sleep(20);
    await file.close();
  });
});

describe('a file that is read', () => {
  test('tells what it reads; an empty one has a digest', async () => {
    const bytes = bytesOf(9 * MIB + 5);
    await writeFile(path, bytes);
    let read = 0;
    const onRead = (count: number) => {
      read += count;
    };
    expect(await sha256OfFile(path, onRead)).toBe(expected(bytes));
    expect(read).toBe(bytes.length);
    await writeFile(path, '');
    expect(await sha256OfFile(path)).toBe(expected());
  });

  test('and becomes shorter, is none, or cannot be read', async () => {
    await writeFile(path, new Uint8Array(9 * MIB));
    const reading = sha256OfFile(path, () => truncateSync(path, 5 * MIB));
    await expect(reading).rejects.toThrow(`${path} became shorter while it was read`);
    await expect(sha256OfFile(folder)).rejects.toMatchObject({ code: 'bad-file' });
    await expect(sha256OfFile(join(folder, 'no'))).rejects.toMatchObject({ code: 'not-found' });
  });
});
