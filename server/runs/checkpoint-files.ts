import { lstat, readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { absent } from '../../engine/node/file-bytes.ts';

export interface MeasuredCheckpoint {
  readonly bytes: number;
  /** Another one when any file of it was written, replaced, added or removed. */
  readonly stamp: string;
}

/** A checkpoint on disk: the file, or all files of a folder. A link counts by itself; null for what is gone. */
export async function measureCheckpoint(path: string): Promise<MeasuredCheckpoint | null> {
  const info = await lstat(path).catch(absent);
  if (!info) return null;
  if (!info.isDirectory()) return { bytes: info.size, stamp: stampOf('', info) };
  // A folder's own times do not change while a file in it grows.
  const names = await readdir(path).catch(absent);
  if (!names) return null;
  let bytes = 0;
  const stamps = [];
  for (const name of names.sort()) {
    const file = await lstat(join(path, name)).catch(absent);
    if (!file) continue;
    bytes += file.size;
    stamps.push(stampOf(name, file));
  }
  return { bytes, stamp: stamps.join('\n') };
}

/** Bytes of a checkpoint on disk, and of what is gone 0. */
export async function checkpointBytes(path: string): Promise<number> {
  return (await measureCheckpoint(path))?.bytes ?? 0;
}

type FileTimes = Pick<Awaited<ReturnType<typeof lstat>>, 'size' | 'mtimeMs' | 'ctimeMs' | 'ino'>;
const stampOf = (name: string, { size, mtimeMs, ctimeMs, ino }: FileTimes) =>
  `${name} ${size} ${mtimeMs} ${ctimeMs} ${ino}`;
