import { StudioError } from '../errors.ts';

/** The CRC-32 of `bytes`, going on from `previous`, 0 at the start. */
export type Crc32 = (bytes: Uint8Array, previous: number) => number;

/** Something of known length that can be read anywhere: a file, a part of one, bytes in memory. */
export interface ByteSource {
  /** How errors call it: a path or file name. */
  readonly name: string;
  readonly bytes: number;
  /** Exactly `length` bytes from `offset`, as a fresh array at offset 0 of its own buffer. A range outside is 'bad-file'. */
  read(offset: number, length: number): Promise<Uint8Array<ArrayBuffer>>;
  /** A faster one than `crc32.ts`, where the platform has it. */
  readonly crc32?: Crc32;
}

/** Where a writer puts its bytes, in order. A chunk must not change any more: it may be on its way yet when the promise resolves. */
export interface ByteSink {
  write(chunk: Uint8Array): Promise<void>;
  /** A faster one than `crc32.ts`, where the platform has it. */
  readonly crc32?: Crc32;
}

/** Chunks of a tensor or record, in order. What was given does not change any more. */
export type ByteChunks = Iterable<Uint8Array> | AsyncIterable<Uint8Array>;

/** Pieces above this are split, so that a checksum never holds the thread for more than a few milliseconds. */
export const PIECE_BYTES = 2 * 1024 * 1024;

/** Throws 'bad-file' unless [offset, offset + length) lies inside `source`. */
export function checkRange(source: Pick<ByteSource, 'name' | 'bytes'>, offset: number, length: number): void {
  const whole = Number.isSafeInteger(offset) && Number.isSafeInteger(length) && offset >= 0 && length >= 0;
  if (!whole || offset + length > source.bytes) {
    throw new StudioError(
      'bad-file',
      `${source.name} is cut short or damaged: it points at bytes ${offset} to ${offset + length}, but has ${source.bytes}.`,
      { file: source.name, offset, length, bytes: source.bytes },
    );
  }
}

/** A source over bytes in memory; reads copy. */
export function bytesSource(name: string, data: Uint8Array): ByteSource {
  const source = {
    name,
    bytes: data.length,
    async read(offset: number, length: number) {
      checkRange(source, offset, length);
      const out = new Uint8Array(length);
      out.set(data.subarray(offset, offset + length));
      return out;
    },
  };
  return source;
}

/** The window [offset, offset + length) of another source, as a source of its own. A window outside is 'bad-file'. */
export function sliceSource(outer: ByteSource, offset: number, length: number, name = outer.name): ByteSource {
  checkRange(outer, offset, length);
  const source = {
    name,
    bytes: length,
    crc32: outer.crc32,
    read(start: number, count: number) {
      checkRange(source, start, count);
      return outer.read(offset + start, count);
    },
  };
  return source;
}

/** All of a source in pieces of at most PIECE_BYTES. */
export async function* readPieces(source: ByteSource): AsyncGenerator<Uint8Array<ArrayBuffer>> {
  for (let at = 0; at < source.bytes; at += PIECE_BYTES) {
    yield await source.read(at, Math.min(PIECE_BYTES, source.bytes - at));
  }
}
