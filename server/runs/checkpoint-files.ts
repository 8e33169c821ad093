import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';

/** Bytes of a checkpoint on disk: of the file, or of all files of a folder. */
export async function checkpointBytes(path: string): Promise<number> {
  const info = await stat(path);
  if (!info.isDirectory()) return info.size;
  const names = await readdir(path);
  const sizes = await Promise.all(names.map(async (name) => (await stat(join(path, name))).size));
  return sizes.reduce((sum, size) => sum + size, 0);
}
