import { randomUUID } from 'node:crypto';
import { lstat } from 'node:fs/promises';
import type { ByteSink } from '../checkpoint/byte-source.ts';
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
import { absent, naming } from './file-bytes.ts';
import { createFileSink } from './whole-file.ts';

export interface ConversionRequest extends OptimizerOptions {
  readonly from: string;
  readonly to: string;
  readonly kind: CheckpointKind;
  /** In how many rank files a folder is written; 1 if left out. */
  readonly ranks?: number;
  /** Told the bytes of each write. */
  onWritten?(bytes: number): void;
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
  request: ConversionRequest,
): Promise<Conversion> {
  const sink = await createFileSink(to);
  try {
    const conversion = await convertCheckpoint(from, { kind, sink: watched(sink, request) }, request);
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
  request: ConversionRequest,
): Promise<Conversion> {
  const temporary = await beginCheckpointFolder(to);
  const files: FolderFile[] = [];
  const file = async (name: string, write: Parameters<typeof writeFolderFile>[2]) => {
    const written = await writeFolderFile(temporary, name, (sink) => write(watched(sink, request)));
    files.push(written.file);
  };
  try {
    const conversion = await convertCheckpoint(from, { kind: 'sharded', ranks, saveId: randomUUID(), file }, request);
    await commitCheckpointFolder(temporary, to, files);
    return conversion;
  } catch (error) {
    await abortCheckpointFolder(temporary);
    throw error;
  }
}

function watched(sink: ByteSink, { onWritten }: ConversionRequest): ByteSink {
  if (!onWritten) return sink;
  return {
    crc32: sink.crc32,
    async write(chunk) {
      await sink.write(chunk);
      onWritten(chunk.length);
    },
  };
}
