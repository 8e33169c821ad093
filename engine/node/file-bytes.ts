import { createHash, randomBytes } from 'node:crypto';
import { constants } from 'node:fs';
import { type FileHandle, open, readdir, readFile, rename, stat, unlink } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { crc32 } from 'node:zlib';
import { type ByteSink, type ByteSource, checkRange, readPieces } from '../checkpoint/byte-source.ts';
import { StudioError } from '../errors.ts';
import { errorCode } from './errno.ts';

/** The kernel reads at most 2 GiB in one call. */
const MAX_CALL_BYTES = 1024 * 1024 * 1024;
/** Of the file beside a checkpoint that makes it count. */
export const DIGEST_SUFFIX = '.sha256';
/** Between the name to come and a random end: what a killed writer leaves behind is known by it. */
export const TEMPORARY_MARK = '.part-';

export type FileSource = ByteSource & { close(): Promise<void> };

/** Opens a file for reading anywhere in it. Its length is taken now. 'not-found' or 'io' if it cannot be opened. */
export async function openFileSource(path: string): Promise<FileSource> {
  // A pipe would let no one go on before something writes to it.
  const file = await naming(path, () => open(path, constants.O_RDONLY | constants.O_NONBLOCK));
  const info = await file.stat();
  if (!info.isFile()) {
    await file.close();
    throw new StudioError('bad-file', `${path} is not a file.`, { file: path });
  }
  const source: FileSource = {
    name: path,
    bytes: info.size,
    async read(offset, length) {
      checkRange(source, offset, length);
      const out = new Uint8Array(length);
      for (let at = 0; at < length; ) {
        const want = Math.min(MAX_CALL_BYTES, length - at);
        const { bytesRead } = await naming(path, () => file.read(out, at, want, offset + at));
        if (bytesRead === 0)
          throw new StudioError('bad-file', `${path} became shorter while it was read.`, { file: path });
        at += bytesRead;
      }
      return out;
    },
    crc32,
    close: () => file.close(),
  };
  return source;
}

export interface WrittenFile {
  readonly path: string;
  readonly bytes: number;
  readonly sha256: string;
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
  const temporary = `${path}${TEMPORARY_MARK}${randomBytes(6).toString('hex')}`;
  const file = await naming(path, () => open(temporary, 'wx'));
  const hash = createHash('sha256');
  let bytes = 0;
  let state: 'open' | 'committed' | 'aborted' = 'open';

  const digest = `${path}${DIGEST_SUFFIX}`;
  const temporaryDigest = `${digest}${TEMPORARY_MARK}${randomBytes(6).toString('hex')}`;
  const remove = async (...paths: string[]): Promise<void> => {
    for (const left of paths) await unlink(left).catch(absent);
  };

  const finish = async (): Promise<WrittenFile> => {
    await file.sync();
    await file.close();
    const sha256 = hash.digest('hex');
    await remove(digest);
    await writeSynced(temporaryDigest, `${sha256}  ${basename(path)}\n`);
    await syncFolder(dirname(path));
    await rename(temporary, path);
    await syncFolder(dirname(path));
    await rename(temporaryDigest, digest);
    await syncFolder(dirname(path));
    return { path, bytes, sha256 };
  };

  return {
    crc32,
    async write(chunk) {
      if (state !== 'open') throw new StudioError('internal', `${path} is ${state} and cannot be written to.`);
      const written = naming(path, () => writeAll(file, chunk));
      hash.update(chunk); // Beside the write, which is in another thread.
      await written;
      bytes += chunk.length;
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
  const source = await openFileSource(path);
  try {
    const hash = createHash('sha256');
    for await (const piece of readPieces(source)) {
      hash.update(piece);
      onRead?.(piece.length);
    }
    const found = hash.digest('hex');
    if (found !== expected) {
      throw new StudioError(
        'bad-file',
        `${path} has changed since it was written: its sha256 is not that of ${DIGEST_SUFFIX}.`,
        {
          file: path,
          expected,
          found,
        },
      );
    }
    return expected;
  } finally {
    await source.close();
  }
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

/** Writes all of a chunk, however few bytes a call takes. */
export async function writeAll(file: FileHandle, chunk: Uint8Array): Promise<void> {
  for (let at = 0; at < chunk.length; ) {
    const { bytesWritten } = await file.write(chunk, at, Math.min(MAX_CALL_BYTES, chunk.length - at));
    at += bytesWritten;
  }
}

/** A new file of this text, safely on disk. */
export async function writeSynced(path: string, text: string): Promise<void> {
  const file = await open(path, 'wx');
  try {
    await file.writeFile(text);
    await file.sync();
  } finally {
    await file.close();
  }
}

/** A rename is only safe from a power cut once its folder is on disk. */
export async function syncFolder(path: string): Promise<void> {
  const folder = await open(path, 'r');
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}

/** null for a file that is not there; any other failure is thrown on. */
export function absent(error: unknown): null {
  if (errorCode(error) === 'ENOENT') return null;
  throw error;
}

const REASONS: Readonly<Record<string, string>> = {
  ENOSPC: 'the disk is full',
  EFBIG: 'the file system takes no file of this size',
  EIO: 'the disk reports an error',
  EDQUOT: 'the disk quota is used up',
  EACCES: 'this user may not',
  EROFS: 'the file system is read-only',
  EISDIR: 'it is a folder',
  ENOTDIR: 'a part of its path is no folder',
  EMFILE: 'too many files are open',
};

/** Errors of the file system as ours, with the path and the reason in words. */
export async function naming<T>(path: string, action: () => Promise<T>): Promise<T> {
  try {
    return await action();
  } catch (error) {
    const code = errorCode(error);
    if (error instanceof StudioError || code === undefined) throw error;
    if (code === 'ENOENT')
      throw new StudioError('not-found', `${path} is not there.`, { file: path }, { cause: error });
    throw new StudioError(
      'io',
      `${path} cannot be read or written: ${REASONS[code] ?? code}.`,
      { file: path, code },
      { cause: error },
    );
  }
}
