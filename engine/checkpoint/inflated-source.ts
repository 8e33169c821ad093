import { StudioError } from '../errors.ts';
import { type ByteSource, checkRange } from './byte-source.ts';

/** Of the deflated data, at once. */
const FED_BYTES = 256 * 1024;

/**
 * The content of a deflated record as a source: unpacked as it is read, so that no more of it is in memory than what is
 * asked for. A read goes on from the one before; one further back begins again. Reads wait for each other. 'bad-file'
 * where the data is damaged or there is less or more of it than `bytes`, as far as it is read.
 */
export function inflatedSource(stored: ByteSource, bytes: number): ByteSource {
  let inflater = new Inflater(stored, bytes);
  let before: Promise<unknown> = Promise.resolve();
  const source: ByteSource = {
    name: stored.name,
    bytes,
    crc32: stored.crc32,
    read(offset, length) {
      const read = before.then(async () => {
        checkRange(source, offset, length);
        if (offset < inflater.position || inflater.hasFailed) {
          await inflater.cancel();
          inflater = new Inflater(stored, bytes);
        }
        await inflater.skip(offset - inflater.position);
        return inflater.take(length);
      });
      before = read.catch(() => undefined);
      return read;
    },
  };
  return source;
}

/** One pass over a deflated record. */
class Inflater {
  /** Bytes of the content that were taken. */
  position = 0;
  hasFailed = false;
  private rest: Uint8Array = new Uint8Array(0);
  private readonly writer: WritableStreamDefaultWriter<Uint8Array<ArrayBuffer>>;
  private readonly reader: ReadableStreamDefaultReader<Uint8Array>;
  private fed = 0;
  /** Resolves when what was fed last is unpacked. */
  private unpacked: Promise<void> = Promise.resolve();
  private closed = false;

  constructor(
    private readonly stored: ByteSource,
    private readonly bytes: number,
  ) {
    const { readable, writable } = new DecompressionStream('deflate-raw');
    this.writer = writable.getWriter();
    this.reader = readable.getReader();
  }

  async take(length: number): Promise<Uint8Array<ArrayBuffer>> {
    const out = new Uint8Array(length);
    for (let used = 0; used < length; ) {
      const part = await this.next(length - used);
      out.set(part, used);
      used += part.length;
    }
    if (this.position === this.bytes) await this.expectEnd();
    return out;
  }

  async skip(length: number): Promise<void> {
    for (let left = length; left > 0; ) left -= (await this.next(left)).length;
  }

  /** The stream may have failed already; its error was told by the read that met it. */
  async cancel(): Promise<void> {
    await this.reader.cancel().catch(() => undefined);
  }

  private async next(most: number): Promise<Uint8Array> {
    while (this.rest.length === 0) {
      const chunk = await this.pull();
      if (!chunk) throw this.bad(`it unpacks to ${this.position} bytes instead of the ${this.bytes} it claims`);
      this.rest = chunk;
    }
    const part = this.rest.subarray(0, most);
    this.rest = this.rest.subarray(part.length);
    this.position += part.length;
    return part;
  }

  private async expectEnd(): Promise<void> {
    for (;;) {
      if (this.rest.length > 0) throw this.bad(`it unpacks to more than the ${this.bytes} bytes it claims`);
      const chunk = await this.pull();
      if (!chunk) return;
      this.rest = chunk;
    }
  }

  /** The next chunk, or null at the end. Feeds no more than it takes: a stream of this kind would take everything at once. */
  private async pull(): Promise<Uint8Array | null> {
    try {
      const read = this.reader.read();
      for (;;) {
        const idle = this.closed ? read : this.unpacked.then(() => null);
        const result = await Promise.race([read, idle]);
        if (result) return result.done ? null : result.value;
        await this.feed();
      }
    } catch (error) {
      this.hasFailed = true;
      if (error instanceof StudioError) throw error;
      const message = `${this.stored.name} cannot be unpacked: its deflated data is damaged.`;
      throw new StudioError('bad-file', message, {}, { cause: error });
    }
  }

  private async feed(): Promise<void> {
    const length = Math.min(FED_BYTES, this.stored.bytes - this.fed);
    if (length > 0) this.unpacked = this.writer.write(await this.stored.read(this.fed, length));
    else {
      this.closed = true;
      this.unpacked = this.writer.close();
    }
    this.fed += length;
    // What goes wrong is told by the read.
    this.unpacked.catch(() => undefined);
  }

  private bad(what: string): StudioError {
    this.hasFailed = true;
    return new StudioError(
      'bad-file',
      `${this.stored.name} is not a whole zip file: ${what}. Copy or download it again.`,
      {
        file: this.stored.name,
      },
    );
  }
}
