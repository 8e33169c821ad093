import { constants } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { crc32 } from 'node:zlib';
import { type ByteSource, checkRange } from '../checkpoint/byte-source.ts';
import { StudioError } from '../errors.ts';
import { errorCode } from './errno.ts';

/** The kernel reads at most 2 GiB in one call. */
const MAX_CALL_BYTES = 1024 * 1024 * 1024;
/** Of the file beside a checkpoint that makes it count. */
export const DIGEST_SUFFIX = '.sha256';
/** Between the name to come and a random end: what a killed writer leaves behind is known by it. */
export const TEMPORARY_MARK = '.part-';

/** A plain file to be read, and its length. A folder, a pipe or a device is 'bad-file'. */
export async function openPlainFile(path: string): Promise<{ readonly file: FileHandle; readonly bytes: number }> {
  // A pipe would let no one go on before something writes to it.
  const file = await naming(path, () => open(path, constants.O_RDONLY | constants.O_NONBLOCK));
  const info = await file.stat();
  if (info.isFile()) return { file, bytes: info.size };
  await file.close();
  throw new StudioError('bad-file', `${path} is not a file.`, { file: path });
}

export type FileSource = ByteSource & { close(): Promise<void> };

/** Opens a file for reading anywhere in it. Its length is taken now. 'not-found' or 'io' if it cannot be opened. */
export async function openFileSource(path: string): Promise<FileSource> {
  const { file, bytes } = await openPlainFile(path);
  const source: FileSource = {
    name: path,
    bytes,
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
