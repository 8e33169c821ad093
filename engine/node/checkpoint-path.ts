import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { openCheckpoint } from '../checkpoint/open-checkpoint.ts';
import type { WeightsOptions } from '../checkpoint/state-dicts.ts';
import type { StoredCheckpoint } from '../checkpoint/stored-checkpoint.ts';
import { StudioError } from '../errors.ts';
import { type FileSource, naming, openFileSource } from './file-bytes.ts';

export interface OpenedCheckpoint {
  readonly checkpoint: StoredCheckpoint;
  close(): Promise<void>;
}

/**
 * Opens the checkpoint at `path`: a file, or the folder of a sharded one. Nothing in it is executed; `onRead` is told the
 * bytes of each read. Errors: those of `openCheckpoint` and `plainFiles`, 'not-found' where nothing is.
 */
export async function openCheckpointPath(
  path: string,
  options: WeightsOptions = {},
  onRead?: (bytes: number) => void,
): Promise<OpenedCheckpoint> {
  const info = await stat(path).catch(() => null);
  if (!info) throw new StudioError('not-found', `${path} is not there.`, { file: path });
  const open = async (file: string) => watched(await openFileSource(file), onRead);
  if (!info.isDirectory()) return openFile(await open(path), options);
  const files = new Map<string, FileSource>();
  const close = async () => {
    await Promise.all([...files.values()].map((file) => file.close()));
  };
  try {
    for (const name of await plainFiles(path)) files.set(name, await open(join(path, name)));
    return { checkpoint: await openCheckpoint({ folder: path, files }, options), close };
  } catch (error) {
    await close();
    throw error;
  }
}

/**
 * The names of the files of a checkpoint folder, in order. Folders in it are passed over; a link, which may lead anywhere,
 * and whatever else is no plain file is 'bad-file', by its name.
 */
export async function plainFiles(folder: string): Promise<string[]> {
  const entries = await naming(folder, () => readdir(folder, { withFileTypes: true }));
  const odd = entries.find((entry) => !entry.isFile() && !entry.isDirectory());
  if (odd)
    throw new StudioError(
      'bad-file',
      `${join(folder, odd.name)} is ${odd.isSymbolicLink() ? 'a link' : 'no plain file'}. A checkpoint folder is read as far as it holds plain files alone: put the file itself there, or remove it.`,
      { file: join(folder, odd.name) },
    );
  return entries
    .filter((entry) => entry.isFile())
    .map(({ name }) => name)
    .sort();
}

async function openFile(file: FileSource, options: WeightsOptions): Promise<OpenedCheckpoint> {
  try {
    return { checkpoint: await openCheckpoint({ file }, options), close: () => file.close() };
  } catch (error) {
    await file.close();
    throw error;
  }
}

function watched(source: FileSource, onRead: ((bytes: number) => void) | undefined): FileSource {
  if (!onRead) return source;
  const read: FileSource['read'] = async (offset, length) => {
    const bytes = await source.read(offset, length);
    onRead(length);
    return bytes;
  };
  return { ...source, read };
}
