import { lstat, readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { absent } from '../../engine/node/file-bytes.ts';

/** Bytes of a checkpoint on disk: of the file, or of all files of a folder. A link counts by itself, and what is gone 0. */
export async function checkpointBytes(path: string): Promise<number> {
  const bytesOf = async (file: string) => (await lstat(file).catch(absent))?.size ?? 0;
  const info = await lstat(path);
  if (!info.isDirectory()) return info.size;
  const sizes = await Promise.all((await readdir(path)).map((name) => bytesOf(join(path, name))));
  return sizes.reduce((sum, size) => sum + size, 0);
}
