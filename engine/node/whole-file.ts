import { randomBytes } from 'node:crypto';
import { readdir, readFile, rename, stat, unlink } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import type { ByteSink } from '../checkpoint/byte-source.ts';
import { StudioError } from '../errors.ts';
import { type Digested, DigestedFile, sha256OfFile } from './digested-file.ts';
import { absent, DIGEST_SUFFIX, naming, syncFolder, TEMPORARY_MARK, writeSynced } from './file-bytes.ts';
import { isSameProcess, processStartTime } from './liveness.ts';

export interface WrittenFile extends Digested {
  readonly path: string;
}

/** A file that appears whole or not at all. */
export interface FileSink extends ByteSink {
  /** Makes the file and its digest appear, safely on disk; if that fails, nothing of either stays. */
  commit(): Promise<WrittenFile>;
  /** Removes what was written; to be called when a write failed. After `commit` it does nothing. */
  abort(): Promise<void>;
}

/**
 * Writes `path` under a temporary name, its sha256 computed on the way; `commit` puts both in place.
 *
 * The digest file, in the form of `sha256sum`, is what makes the file count (`isWholeFile`). The order is: contents of both
 * on disk, file renamed, folder on disk, digest renamed, folder on disk. Killed before the first rename, a writer leaves
 * temporary names; between the two, a file without a digest; at no moment a digest beside another content, since a whole
 * file is never overwritten ('conflict') and a digest without its file is removed first.
 */
export async function createFileSink(path: string): Promise<FileSink> {
  if (await isWholeFile(path)) {
    throw new StudioError(
      'conflict',
      `${path} exists. A checkpoint is never overwritten; choose another name or delete it.`,
      {
        file: path,
      },
    );
  }
  await naming(path, () => removeOfTheDead(path));
  const temporary = temporaryName(path);
  const file = await DigestedFile.create(temporary, { called: path });
  let state: 'open' | 'committed' | 'aborted' = 'open';

  const digest = `${path}${DIGEST_SUFFIX}`;
  const temporaryDigest = temporaryName(digest);
  const remove = async (...paths: string[]): Promise<void> => {
    for (const left of paths) await unlink(left).catch(absent);
  };

  const finish = async (): Promise<WrittenFile> => {
    const written = await file.finish();
    await remove(digest);
    await writeSynced(temporaryDigest, `${written.sha256}  ${basename(path)}\n`);
    await syncFolder(dirname(path));
    await rename(temporary, path);
    await syncFolder(dirname(path));
    await rename(temporaryDigest, digest);
    await syncFolder(dirname(path));
    return { path, ...written };
  };

  return {
    crc32: file.crc32,
    async write(chunk) {
      if (state !== 'open') throw new StudioError('internal', `${path} is ${state} and cannot be written to.`);
      await file.write(chunk);
    },
    async commit() {
      if (state !== 'open') throw new StudioError('internal', `${path} is already ${state}.`);
      state = 'committed';
      return naming(path, () =>
        finish().catch(async (error) => {
          // Not whole without its digest, so nothing of it may stay.
          await file.close().catch(() => {});
          await remove(digest, path, temporaryDigest, temporary);
          throw error;
        }),
      );
    },
    async abort() {
      if (state !== 'open') return;
      state = 'aborted';
      await file.close();
      await remove(temporary);
    },
  };
}

/** Says who writes: a pid and a start time, which name a process for good. */
function temporaryName(path: string): string {
  return `${path}${TEMPORARY_MARK}${process.pid}-${processStartTime(process.pid)}-${randomBytes(6).toString('hex')}`;
}

/** Removes what earlier writers of this file left, who were killed. What a living one writes stays. */
async function removeOfTheDead(path: string): Promise<void> {
  const marks = [path, `${path}${DIGEST_SUFFIX}`].map((name) => basename(name) + TEMPORARY_MARK);
  for (const name of await readdir(dirname(path))) {
    const mark = marks.find((each) => name.startsWith(each));
    const [, pid, startTime] = /^(\d+)-(\d+)-[0-9a-f]{12}$/.exec(name.slice(mark?.length)) ?? [];
    if (mark === undefined || pid === undefined || isSameProcess(Number(pid), Number(startTime))) continue;
    await unlink(join(dirname(path), name)).catch(absent);
  }
}

/** Whether a file was committed: its digest file is there and well-formed. Its bytes are not read; see `verifyFile`. */
export async function isWholeFile(path: string): Promise<boolean> {
  const [info, digest] = await naming(path, () => Promise.all([stat(path).catch(absent), readDigest(path)]));
  return info?.isFile() === true && digest !== null;
}

/** The sha256 in the file beside `path`, or null where there is none. */
export async function readDigest(path: string): Promise<string | null> {
  const text = await readFile(`${path}${DIGEST_SUFFIX}`, 'utf8').catch(absent);
  return text === null ? null : (/^([0-9a-f]{64}) [ *]/.exec(text)?.[1] ?? null);
}

/** Reads a file once and throws 'bad-file' if it is not what its digest says. Returns the digest. `onRead` is told bytes. */
export async function verifyFile(path: string, onRead?: (bytes: number) => void): Promise<string> {
  const expected = await readDigest(path);
  if (expected === null) {
    throw new StudioError('bad-file', `${path} has no digest beside it, so it was not written to the end.`, {
      file: path,
    });
  }
  const found = await sha256OfFile(path, onRead);
  if (found !== expected) {
    throw new StudioError(
      'bad-file',
      `${path} has changed since it was written: its sha256 is not that of ${DIGEST_SUFFIX}.`,
      { file: path, expected, found },
    );
  }
  return expected;
}

/**
 * Removes what killed writers left in a folder: temporary names, digests without their file, and files ending in `suffix`
 * without a digest. Only while no one writes there. Returns the names removed.
 */
export async function removeLeftovers(folder: string, suffix: string): Promise<string[]> {
  const names = await naming(folder, () => readdir(folder));
  const present = new Set(names);
  const left = names.filter((name) => {
    if (name.includes(TEMPORARY_MARK)) return true;
    if (name.endsWith(DIGEST_SUFFIX)) return !present.has(name.slice(0, -DIGEST_SUFFIX.length));
    return name.endsWith(suffix) && !present.has(`${name}${DIGEST_SUFFIX}`);
  });
  for (const name of left) await unlink(join(folder, name)).catch(absent);
  if (left.length > 0) await syncFolder(folder);
  return left;
}
