import { PassThrough } from 'node:stream';
import { crc32 } from 'node:zlib';
import { conversionBytes, convertCheckpoint } from '../../engine/checkpoint/convert-checkpoint.ts';
import { openCheckpointPath } from '../../engine/node/checkpoint-path.ts';

export interface ConvertedFile {
  readonly bytes: number;
  /** All bytes, made as they are read; to be asked for once. */
  read(): AsyncIterable<Uint8Array>;
  close(): Promise<void>;
}

/** The checkpoint at `path` as one file of another form, made as it is read: its size is known, no tensor is kept. */
export async function convertedFile(path: string, kind: 'full' | 'safetensors'): Promise<ConvertedFile> {
  const { checkpoint, close } = await openCheckpointPath(path);
  try {
    const bytes = await conversionBytes(checkpoint, kind);
    const read = () => {
      const stream = new PassThrough();
      const write = (chunk: Uint8Array) =>
        new Promise<void>((resolve, reject) => {
          stream.write(Buffer.from(chunk.buffer, chunk.byteOffset, chunk.length), (error) =>
            error ? reject(error) : resolve(),
          );
        });
      convertCheckpoint(checkpoint, { kind, sink: { crc32, write } }).then(
        () => stream.end(),
        (error: unknown) => stream.destroy(error as Error),
      );
      return stream;
    };
    return { bytes, read, close };
  } catch (error) {
    await close();
    throw error;
  }
}
