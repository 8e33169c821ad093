import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { openCheckpoint } from '../checkpoint/open-checkpoint.ts';
import type { WeightsOptions } from '../checkpoint/state-dicts.ts';
import type { StoredCheckpoint } from '../checkpoint/stored-checkpoint.ts';
import { StudioError } from '../errors.ts';
import { type FileSource, openFileSource } from './file-bytes.ts';

export interface OpenedCheckpoint {
  readonly checkpoint: StoredCheckpoint;
  close(): Promise<void>;
}

/**
 * Opens the checkpoint at `path`: a file, or the folder of a sharded one. Nothing in it is executed. Errors: those of
 * `openCheckpoint`, 'not-found' where nothing is.
 */
export async function openCheckpointPath(path: string, options: WeightsOptions = {}): Promise<OpenedCheckpoint> {
  const info = await stat(path).catch(() => null);
  if (!info) throw new StudioError('not-found', `${path} is not there.`, { file: path });
  if (!info.isDirectory()) return openFile(path, options);
  const files = new Map<string, FileSource>();
  const close = async () => {
    await Promise.all([...files.values()].map((file) => file.close()));
  };
  try {
    for (const name of await readdir(path))
      if ((await stat(join(path, name))).isFile()) files.set(name, await openFileSource(join(path, name)));
    return { checkpoint: await openCheckpoint({ folder: path, files }, options), close };
  } catch (error) {
    await close();
    throw error;
  }
}

async function openFile(path: string, options: WeightsOptions): Promise<OpenedCheckpoint> {
  const file = await openFileSource(path);
  try {
    return { checkpoint: await openCheckpoint({ file }, options), close: () => file.close() };
  } catch (error) {
    await file.close();
    throw error;
  }
}
