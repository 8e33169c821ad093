import { access, constants, mkdir, readdir, realpath, rm, stat } from 'node:fs/promises';
import { dirname, isAbsolute, join, relative, resolve, sep } from 'node:path';
import { StudioError } from '../engine/errors.ts';
import { errorCode, whyNot } from '../engine/node/errno.ts';

/** Where the studio keeps things. Everything below is ours; a file that a person brings lies in uploads/. */
export interface DataFolder {
  readonly root: string;
  readonly runs: string;
  readonly uploads: string;
  readonly corpora: string;
  readonly database: string;
  readonly lock: string;
}

/** Makes the data folder, readable by its owner only, and returns its real paths. Throws `io`. */
export async function openDataFolder(path: string): Promise<DataFolder> {
  try {
    await mkdir(path, { recursive: true, mode: 0o700 });
    const root = await realpath(path);
    await access(root, constants.W_OK);
    const inside = (name: string) => join(root, name);
    for (const name of ['runs', 'uploads', 'corpora']) await mkdir(inside(name), { recursive: true, mode: 0o700 });
    return {
      root,
      runs: inside('runs'),
      uploads: inside('uploads'),
      corpora: inside('corpora'),
      database: inside('studio.db'),
      lock: inside('server.lock'),
    };
  } catch (cause) {
    const why = whyNot(errorCode(cause)) ?? whyNot(await obstacleAbove(path)) ?? (cause as Error).message;
    throw new StudioError(
      'io',
      `The data folder ${path} cannot be used: ${why}. Choose another with --data, or make it writable.`,
      {},
      { cause },
    );
  }
}

/** What keeps a folder from being made: mkdir says of a read-only disk that something is not there. */
async function obstacleAbove(path: string): Promise<string | undefined> {
  for (let folder = resolve(path); ; folder = dirname(folder)) {
    if (!(await stat(folder).catch(() => null))) continue;
    return access(folder, constants.W_OK).then(() => undefined, errorCode);
  }
}

/** Uploads begin with this while they arrive, and what has it is never listed. */
export const PARTIAL_UPLOAD = '.partial-';

/** Removes uploads that the end of an earlier server cut short. Only for who holds the folder's lock. */
export async function removePartialUploads({ uploads }: DataFolder): Promise<void> {
  for (const name of await readdir(uploads))
    if (name.startsWith(PARTIAL_UPLOAD)) await rm(join(uploads, name), { recursive: true, force: true });
}

/**
 * The real path of a file or folder that a request named relative to the data folder. Throws `forbidden` when it leads
 * outside, also through a symbolic link, and `not-found` when it is not there.
 */
export async function confine(root: string, path: string): Promise<string> {
  const outside = () => new StudioError('forbidden', `The path ${quote(path)} leaves the data folder.`);
  if (path.includes('\0') || path.includes('\\') || isAbsolute(path)) throw outside();
  const wanted = resolve(root, path);
  if (!isInside(root, wanted)) throw outside();
  let real: string;
  try {
    real = await realpath(wanted);
  } catch (cause) {
    const { code } = cause as NodeJS.ErrnoException;
    if (code === 'ENOENT' || code === 'ENOTDIR' || code === 'ENAMETOOLONG' || code === 'ELOOP')
      throw new StudioError('not-found', `There is no ${quote(path)} in the data folder.`);
    throw cause;
  }
  if (!isInside(root, real)) throw outside();
  return real;
}

/** Whether `path` lies below `root`; both absolute. */
export function isInside(root: string, path: string): boolean {
  const way = relative(root, path);
  return way !== '' && way !== '..' && !way.startsWith(`..${sep}`) && !isAbsolute(way);
}

/** A name from outside, bounded and without control characters, for a message. */
export function quote(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what must not reach a terminal
  return `"${text.slice(0, 100).replaceAll(/[\u0000-\u001f\u007f-\u009f"]/g, '?')}"`;
}
