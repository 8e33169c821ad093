import { lstat, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { StudioError } from '../../engine/errors.ts';
import { commitCheckpointFolder } from '../../engine/node/checkpoint-folder.ts';
import { openCheckpointPath } from '../../engine/node/checkpoint-path.ts';
import { unpackArchive } from './unpack-archive.ts';

/** Reads a checkpoint once, by what its format has to check. Throws 'bad-file' or 'refused-global'; nothing is executed. */
export async function verifyBroughtCheckpoint(path: string): Promise<void> {
  const { checkpoint, close } = await openCheckpointPath(path);
  try {
    await checkpoint.verify();
  } finally {
    await close();
  }
}

/**
 * Brings a checkpoint folder, sent as a tar, into `folder` under `stem` or the next free name. It appears when it is whole,
 * on disk and verified, or not at all. Returns its name, and its size and digest as a checkpoint of ours has them.
 */
export async function importArchive(
  source: AsyncIterable<Buffer>,
  folder: string,
  draft: string,
  stem: string,
  maxBytes: number,
): Promise<{ readonly name: string; readonly bytes: number; readonly sha256: string }> {
  try {
    const { files, digests } = await unpackArchive(source, draft, maxBytes);
    for (const { name, sha256 } of digests ? files : []) {
      if (digests?.get(name) !== sha256)
        throw new StudioError('bad-file', `${name} in the archive is not what its list of digests says.`);
    }
    if (digests && digests.size !== files.length)
      throw new StudioError('bad-file', 'The archive lacks files that are on its list of digests.');
    await verifyBroughtCheckpoint(draft);
    const name = await freeName(folder, stem);
    const { bytes, sha256 } = await commitCheckpointFolder(draft, join(folder, name), files);
    return { name, bytes, sha256 };
  } finally {
    await rm(draft, { recursive: true, force: true });
  }
}

async function freeName(folder: string, stem: string): Promise<string> {
  for (let number = 1; number < 10_000; number++) {
    const name = number === 1 ? stem : `${stem}-${number}`;
    const there = await lstat(join(folder, name)).catch(() => null);
    if (!there) return name;
  }
  throw new StudioError('conflict', `There are too many checkpoints called ${stem}. Give yours another name.`);
}
