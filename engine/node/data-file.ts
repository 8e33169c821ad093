import { stat } from 'node:fs/promises';
import { StudioError } from '../errors.ts';
import { errorCode } from './errno.ts';

/**
 * Looks at a file that a person named, before it is opened (a named pipe would never answer). Rejects with `bad-data` if
 * it is not there, not a file or empty, with `too-large` above `maxBytes`; `wayOut` ends the message.
 */
export async function checkDataFile(path: string, maxBytes: number, wayOut: string): Promise<void> {
  const found = await naming(path, wayOut, () => stat(path));
  if (!found.isFile()) throw new StudioError('bad-data', `${path} is not a file. ${wayOut}`, { path });
  if (found.size === 0) throw new StudioError('bad-data', `${path} is empty. ${wayOut}`, { path });
  if (found.size > maxBytes) {
    throw new StudioError('too-large', `${path} has ${found.size} bytes; at most ${maxBytes} are read.`, {
      path,
      bytes: found.size,
    });
  }
}

/** Turns the system's errors into ones that name the file: `bad-data` where the person can help it, else `io`. */
export async function naming<T>(path: string, wayOut: string, action: () => Promise<T>): Promise<T> {
  try {
    return await action();
  } catch (cause) {
    const code = errorCode(cause);
    if (cause instanceof StudioError || code === undefined) throw cause;
    if (code === 'ENOENT' || code === 'ENOTDIR') {
      throw new StudioError('bad-data', `There is no file ${path}. ${wayOut}`, { path }, { cause });
    }
    if (code === 'EACCES' || code === 'EPERM') {
      throw new StudioError('bad-data', `${path} may not be read by this user. ${wayOut}`, { path }, { cause });
    }
    throw new StudioError('io', `Cannot read ${path}: ${code}.`, { path, code }, { cause });
  }
}
