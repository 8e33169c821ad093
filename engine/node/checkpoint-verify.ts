import { createHash } from 'node:crypto';
import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { readPieces } from '../checkpoint/byte-source.ts';
import type { CheckpointKind } from '../checkpoint/stored-checkpoint.ts';
import { StudioError } from '../errors.ts';
import { readDigestList } from './checkpoint-folder.ts';
import { openCheckpointPath } from './checkpoint-path.ts';
import { naming, openFileSource, readDigest, verifyFile } from './file-bytes.ts';

export interface Verification {
  readonly kind: CheckpointKind;
  /** Whether there were digests to compare with. Without, the checks of the format itself were made (CRC-32, lengths). */
  readonly digests: boolean;
}

/**
 * Reads a checkpoint once and throws 'bad-file', naming the file, if it is not what its digests say: a changed, missing or
 * additional file. Without digests beside it, by what its format has.
 */
export async function verifyCheckpoint(path: string): Promise<Verification> {
  const info = await naming(path, () => stat(path));
  const digests = info.isDirectory() ? await verifyFolderDigests(path) : await verifyFileDigest(path);
  const { checkpoint, close } = await openCheckpointPath(path);
  try {
    if (!digests) await checkpoint.verify();
    return { kind: checkpoint.kind, digests };
  } finally {
    await close();
  }
}

async function verifyFileDigest(path: string): Promise<boolean> {
  if ((await naming(path, () => readDigest(path))) === null) return false;
  await verifyFile(path);
  return true;
}

async function verifyFolderDigests(path: string): Promise<boolean> {
  const digests = await naming(path, () => readDigestList(path));
  if (!digests) return false;
  const names = await naming(path, () => readdir(path));
  const extra = names.filter((name) => !digests.has(name));
  if (extra.length > 0) throw bad(path, `holds ${extra.join(', ')}, which is not on its list of digests`);
  for (const [name, expected] of digests) {
    if (!names.includes(name)) throw bad(path, `lacks ${name}, which is on its list of digests`);
    const found = await sha256Of(join(path, name));
    if (found !== expected) throw bad(join(path, name), 'has changed since it was written: its sha256 is another');
  }
  return true;
}

function bad(path: string, what: string): StudioError {
  return new StudioError('bad-file', `${path} ${what}.`, { file: path });
}

/** The sha256 of a file, read in pieces. */
async function sha256Of(path: string): Promise<string> {
  const source = await openFileSource(path);
  try {
    const hash = createHash('sha256');
    for await (const piece of readPieces(source)) hash.update(piece);
    return hash.digest('hex');
  } finally {
    await source.close();
  }
}
