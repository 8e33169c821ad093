import { type FileHandle, open } from 'node:fs/promises';
import { crc32 } from 'node:zlib';
import { bufferedSink } from '../checkpoint/buffered-sink.ts';
import type { ByteSink } from '../checkpoint/byte-source.ts';
import { StudioError } from '../errors.ts';
import { naming, openPlainFile, writeAll } from './file-bytes.ts';
import { sha256 } from './sha256.ts';

/** Most bytes that are neither written nor hashed yet: a few pieces of each tensor. */
const MOST_WAITING_BYTES = 8 * 2 ** 20;
/**
 * Written bytes are sent to the disk in portions of this, beside what follows. Otherwise the kernel may keep them all, and the
 * disk begins when the digest ends.
 */
const PORTION_BYTES = 64 * 2 ** 20;
const READ_BYTES = 4 * 2 ** 20;

/** What became of a file. */
export interface Digested {
  readonly bytes: number;
  readonly sha256: string;
}

/** A new file that is written and hashed at the same time, both in other threads. */
export class DigestedFile implements ByteSink {
  readonly crc32 = crc32;
  private readonly hash = sha256();
  private readonly waiting: { readonly bytes: number; readonly done: Promise<unknown> }[] = [];
  private waitingBytes = 0;
  private bytes = 0;
  private written: Promise<void> = Promise.resolve();
  private hashed: Promise<void> = Promise.resolve();
  private portionBytes = 0;
  private portion: Promise<void> | null = null;
  private portionFailure: { readonly error: unknown } | null = null;

  private constructor(
    private readonly called: string,
    private readonly file: FileHandle,
  ) {}

  /**
   * Makes the file, which must not be there yet. Errors of the file system are typed, here and below, and call it `called`, its
   * path if left out.
   */
  static async create(
    path: string,
    { called = path, mode }: { readonly called?: string; readonly mode?: number } = {},
  ): Promise<DigestedFile> {
    return new DigestedFile(called, await naming(called, () => open(path, 'wx', mode)));
  }

  /** Takes a chunk, which must not change any more, and resolves once there is room for another. Fails with what failed before. */
  async write(chunk: Uint8Array): Promise<void> {
    this.written = this.written.then(() => this.put(chunk));
    this.hashed = this.hashed.then(() => this.hash.update(chunk));
    const done = Promise.all([this.written, this.hashed]);
    // Told to whoever waits for it; until then it is no unhandled one.
    done.catch(() => undefined);
    this.waiting.push({ bytes: chunk.length, done });
    this.waitingBytes += chunk.length;
    this.bytes += chunk.length;
    while (this.waitingBytes > MOST_WAITING_BYTES) {
      const oldest = this.waiting.shift()!;
      this.waitingBytes -= oldest.bytes;
      await oldest.done;
    }
  }

  /** Waits until all of it is on disk, and closes it. After a failure `close` is to be called. */
  async finish(): Promise<Digested> {
    await Promise.all([this.written, this.hashed]);
    await this.portion;
    if (this.portionFailure) throw this.portionFailure.error;
    await naming(this.called, () => this.file.sync());
    await naming(this.called, () => this.file.close());
    return { bytes: this.bytes, sha256: this.hash.digest() };
  }

  /** Closes it as it is, once nothing is under way. */
  async close(): Promise<void> {
    await Promise.allSettled([this.written, this.hashed, this.portion]);
    this.hash.discard();
    await naming(this.called, () => this.file.close());
  }

  private async put(chunk: Uint8Array): Promise<void> {
    await naming(this.called, () => writeAll(this.file, chunk));
    this.portionBytes += chunk.length;
    if (this.portionBytes < PORTION_BYTES || this.portion) return;
    this.portionBytes = 0;
    this.portion = naming(this.called, () => this.file.datasync()).then(
      () => {
        this.portion = null;
      },
      (error: unknown) => {
        this.portionFailure = { error };
      },
    );
  }
}

/** Writes what comes to a new file, safely on disk when this returns. Where it throws, what there is of the file stays. */
export async function writeDigested(
  parts: AsyncIterable<Uint8Array>,
  path: string,
  options?: Parameters<typeof DigestedFile.create>[1],
): Promise<Digested> {
  const file = await DigestedFile.create(path, options);
  const sink = bufferedSink(file);
  try {
    for await (const part of parts) await sink.write(part);
    await sink.flush();
    return await file.finish();
  } catch (error) {
    await file.close();
    throw error;
  }
}

/** The sha256 of a file, read and hashed at the same time, in 8 MiB of memory. `onRead` is told of bytes as they are read. */
export async function sha256OfFile(path: string, onRead?: (bytes: number) => void): Promise<string> {
  const { file, bytes } = await openPlainFile(path);
  const hash = sha256();
  let [buffer, other] = [new Uint8Array(Math.min(READ_BYTES, bytes)), new Uint8Array(Math.min(READ_BYTES, bytes))];
  let hashed = Promise.resolve();
  try {
    for (let at = 0; at < bytes; ) {
      const { bytesRead } = await naming(path, () => file.read(buffer, 0, Math.min(buffer.length, bytes - at), at));
      if (bytesRead === 0)
        throw new StudioError('bad-file', `${path} became shorter while it was read.`, { file: path });
      at += bytesRead;
      onRead?.(bytesRead);
      await hashed;
      hashed = hash.update(buffer.subarray(0, bytesRead));
      [buffer, other] = [other, buffer];
    }
    await hashed;
    return hash.digest();
  } finally {
    await Promise.allSettled([hashed]);
    hash.discard();
    await file.close();
  }
}
