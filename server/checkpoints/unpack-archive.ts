import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { StudioError } from '../../engine/errors.ts';
import type { FolderFile } from '../../engine/node/checkpoint-folder.ts';
import { writeDigested } from '../../engine/node/digested-file.ts';
import { readTarHeader, TAR_BLOCK, tarPadding } from './tar-format.ts';

/** Files of a checkpoint of 512 ranks with room to spare. */
const MAX_FILES = 2000;
/** Headers of folders and attributes: some before each file, as tars of other programs have them. */
const MAX_SKIPPED = 2 * MAX_FILES;
const MAX_SKIPPED_BYTES = 64 * 1024;
const MAX_LIST_BYTES = 1024 * 1024;
/** Of a file: as long as an archive of ours can give it back. Of the folder: what this studio may call one, see safeStem. */
const FILE_NAME = /^(?:\.metadata|[A-Za-z0-9_][A-Za-z0-9_.-]{0,99})$/;
const FOLDER_NAME = /^[\p{L}\p{N}_][\p{L}\p{N}._-]{0,199}$/u;

export interface UnpackedArchive {
  /** What the folder in it is called. */
  readonly folder: string;
  readonly files: readonly FolderFile[];
  /** The digests in the archive, by file name; null where it has no list. */
  readonly digests: ReadonlyMap<string, string> | null;
}

/**
 * Unpacks a tar with one checkpoint folder, and the list of digests beside it if there is one, as it arrives. Only plain
 * files one folder deep are taken: anything else (links, devices, longer ways, names twice or alike but for their case)
 * is refused as a whole. `maxBytes` bounds what is read and written. The caller removes `into` when this throws.
 */
export async function unpackArchive(
  source: AsyncIterable<Buffer>,
  into: string,
  maxBytes: number,
): Promise<UnpackedArchive> {
  const reader = new BlockReader(source);
  await mkdir(into);
  const files: FolderFile[] = [];
  const seen = new Set<string>();
  let folder: string | null = null;
  let list: string | null = null;
  let total = 0;
  let skipped = 0;
  for (;;) {
    const block = await reader.take(TAR_BLOCK);
    const header = block && readTarHeader(block);
    if (!header) break;
    total += TAR_BLOCK + header.bytes;
    if (total > maxBytes) throw new StudioError('too-large', `The archive has more than ${maxBytes} bytes.`);
    if (header.type === '5' || header.type === 'x' || header.type === 'g') {
      if (++skipped > MAX_SKIPPED)
        throw new StudioError('too-large', `The archive has more than ${MAX_SKIPPED} folders and attributes.`);
      if (header.bytes > MAX_SKIPPED_BYTES) throw refuse(header.name, 'is too large for a folder or an attribute');
      // Attributes that say more of the next file are of no use here, and its name must do without them.
      await reader.skip(header.bytes + tarPadding(header.bytes));
      continue;
    }
    const way = header.name.replace(/^\.\//, '').split('/');
    if (header.type !== '0') throw refuse(header.name, 'is no plain file');
    if (way.length > 2 || !FOLDER_NAME.test(way[0]) || (way.length === 2 && !FILE_NAME.test(way[1])))
      throw refuse(header.name, 'is not a file of a checkpoint folder');
    if (seen.has(header.name.toLowerCase())) throw refuse(header.name, 'is there twice');
    seen.add(header.name.toLowerCase());
    if (seen.size > MAX_FILES) throw new StudioError('too-large', `The archive has more than ${MAX_FILES} files.`);
    if (way.length === 1) {
      if (!way[0].endsWith('.sha256') || header.bytes > MAX_LIST_BYTES)
        throw refuse(header.name, 'is beside the checkpoint folder');
      list = ((await reader.take(header.bytes)) ?? Buffer.alloc(0)).toString('utf8');
    } else {
      folder ??= way[0];
      if (way[0] !== folder) throw refuse(header.name, `is outside ${folder}: an archive holds one checkpoint`);
      const written = await writeDigested(reader.parts(header.bytes), join(into, way[1]), { mode: 0o600 });
      files.push({ name: way[1], ...written });
    }
    await reader.skip(tarPadding(header.bytes));
  }
  await reader.drain();
  if (folder === null) throw new StudioError('bad-file', 'The archive holds no checkpoint folder.');
  return { folder, files, digests: list === null ? null : parseList(list, folder) };
}

function refuse(name: string, why: string): StudioError {
  return new StudioError('bad-file', `The archive is refused: ${JSON.stringify(name.slice(0, 200))} ${why}.`);
}

function parseList(text: string, folder: string): Map<string, string> {
  const digests = new Map<string, string>();
  for (const line of text.split('\n').filter((each) => each !== '')) {
    const [, sha256, where, name] = /^([0-9a-f]{64}) [ *]([^/]+)\/([^/]+)$/.exec(line) ?? [];
    if (where !== folder || digests.has(name))
      throw new StudioError('bad-file', 'The list of digests in the archive is damaged.');
    digests.set(name, sha256);
  }
  return digests;
}

/** Takes exact numbers of bytes from chunks of any size. */
class BlockReader {
  readonly #chunks: AsyncIterator<Buffer>;
  #rest: Buffer = Buffer.alloc(0);

  constructor(source: AsyncIterable<Buffer>) {
    this.#chunks = source[Symbol.asyncIterator]();
  }

  /** The next `bytes`, or null at the end of the archive. Cut short within them is 'bad-file'. */
  async take(bytes: number): Promise<Buffer | null> {
    const parts: Buffer[] = [];
    for await (const part of this.parts(bytes, true)) parts.push(part);
    const all = Buffer.concat(parts);
    if (all.length === bytes) return all;
    if (all.length === 0) return null;
    throw cutShort();
  }

  async skip(bytes: number): Promise<void> {
    for await (const _ of this.parts(bytes));
  }

  async *parts(bytes: number, mayEnd = false): AsyncGenerator<Buffer> {
    for (let left = bytes; left > 0; ) {
      if (this.#rest.length === 0) {
        const next = await this.#chunks.next();
        if (next.done) {
          if (mayEnd) return;
          throw cutShort();
        }
        this.#rest = next.value;
        continue;
      }
      const part = this.#rest.subarray(0, left);
      this.#rest = this.#rest.subarray(part.length);
      left -= part.length;
      yield part;
    }
  }

  /** Reads what a writer fills its last record with, up to 1 MiB. */
  async drain(): Promise<void> {
    for (let bytes = this.#rest.length; bytes < 2 ** 20; ) {
      const next = await this.#chunks.next();
      if (next.done) return;
      bytes += next.value.length;
    }
    throw new StudioError('bad-file', 'The archive goes on after its end.');
  }
}

function cutShort(): StudioError {
  return new StudioError('bad-file', 'The archive is cut short.');
}
