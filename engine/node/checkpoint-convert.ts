import { randomUUID } from 'node:crypto';
import { lstat } from 'node:fs/promises';
import { type Conversion, convertCheckpoint } from '../checkpoint/convert-checkpoint.ts';
import type { CheckpointKind, StoredCheckpoint } from '../checkpoint/stored-checkpoint.ts';
import type { OptimizerOptions } from '../checkpoint/stored-optimizer.ts';
import { StudioError } from '../errors.ts';
import {
  abortCheckpointFolder,
  beginCheckpointFolder,
  commitCheckpointFolder,
  type FolderFile,
  writeFolderFile,
} from './checkpoint-folder.ts';
import { openCheckpointPath } from './checkpoint-path.ts';
import { absent, createFileSink, naming } from './file-bytes.ts';

export interface ConversionRequest extends OptimizerOptions {
  readonly from: string;
  readonly to: string;
  readonly kind: CheckpointKind;
  /** In how many rank files a folder is written; 1 if left out. */
  readonly ranks?: number;
}

/** Converts a checkpoint on disk; the target appears whole, with its digests, or not at all. 'conflict' if it exists. */
export async function convertCheckpointPath(request: ConversionRequest): Promise<Conversion> {
  const { from, to, kind, ranks = 1 } = request;
  if ((await naming(to, () => lstat(to).catch(absent))) !== null) {
    throw new StudioError('conflict', `${to} exists. A conversion overwrites nothing; choose another name.`, {
      file: to,
    });
  }
  const { checkpoint, close } = await openCheckpointPath(from);
  try {
    return kind === 'sharded'
      ? await convertToFolder(checkpoint, to, ranks, request)
      : await convertToFile(checkpoint, to, kind, request);
  } finally {
    await close();
  }
}

async function convertToFile(
  from: StoredCheckpoint,
  to: string,
  kind: 'full' | 'safetensors',
  options: OptimizerOptions,
): Promise<Conversion> {
  const sink = await createFileSink(to);
  try {
    const conversion = await convertCheckpoint(from, { kind, sink }, options);
    await sink.commit();
    return conversion;
  } catch (error) {
    await sink.abort();
    throw error;
  }
}

async function convertToFolder(
  from: StoredCheckpoint,
  to: string,
  ranks: number,
  options: OptimizerOptions,
): Promise<Conversion> {
  const temporary = await beginCheckpointFolder(to);
  const files: FolderFile[] = [];
  const file = async (name: string, write: Parameters<typeof writeFolderFile>[2]) => {
    files.push((await writeFolderFile(temporary, name, write)).file);
  };
  try {
    const conversion = await convertCheckpoint(from, { kind: 'sharded', ranks, saveId: randomUUID(), file }, options);
    await commitCheckpointFolder(temporary, to, files);
    return conversion;
  } catch (error) {
    await abortCheckpointFolder(temporary);
    throw error;
  }
}
