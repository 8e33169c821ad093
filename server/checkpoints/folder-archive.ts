import { constants } from 'node:fs';
import { lstat, open, readdir } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { StudioError } from '../../engine/errors.ts';
import { readDigestList } from '../../engine/node/checkpoint-folder.ts';
import { absent, DIGEST_SUFFIX, naming } from '../../engine/node/file-bytes.ts';
import { quote } from '../data-folder.ts';
import { TAR_END_BYTES, tarHeader, tarPadding } from './tar-format.ts';

const READ_BYTES = 2 ** 20;

/** A part of an archive: bytes at hand, or those of a file. */
type Piece = { readonly bytes: number } & ({ readonly data: Buffer } | { readonly path: string });

export interface FolderArchive {
  readonly bytes: number;
  /** Bytes [start, end], both included. A file that became shorter ends the stream with an error. */
  read(start: number, end: number): AsyncGenerator<Buffer>;
}

/**
 * The tar of a checkpoint folder and its list of digests: nothing is copied, the size is known, and any range of it can be
 * read. Equal folders make equal archives. Throws 'bad-file' unless the folder holds what is on its list, all of it as
 * plain files, and nothing else: what a link leads to is none of the checkpoint's; 'not-found' where it is gone.
 */
export async function folderArchive(folder: string): Promise<FolderArchive> {
  const name = basename(folder);
  const pieces: Piece[] = [];
  const add = async (path: string, as: string) => {
    const info = await lstat(path).catch(absent);
    if (!info?.isFile())
      throw new StudioError('bad-file', `The checkpoint ${name} is damaged: ${as} is no plain file.`);
    const { size } = info;
    const header = tarHeader(as, size);
    pieces.push({ bytes: header.length, data: header }, { bytes: size, path });
    const padding = Buffer.alloc(tarPadding(size));
    if (padding.length) pieces.push({ bytes: padding.length, data: padding });
  };
  const digests = await readDigestList(folder);
  if (!digests) throw new StudioError('bad-file', `The checkpoint ${name} is damaged: it has no list of digests.`);
  const extra = (await naming(folder, () => readdir(folder))).find((file) => !digests.has(file));
  if (extra !== undefined)
    throw new StudioError(
      'bad-file',
      `The checkpoint ${name} is damaged: ${quote(extra)} is not on its list of digests.`,
    );
  for (const file of [...digests.keys()].sort()) await add(join(folder, file), `${name}/${file}`);
  await add(`${folder}${DIGEST_SUFFIX}`, `${name}${DIGEST_SUFFIX}`);
  pieces.push({ bytes: TAR_END_BYTES, data: Buffer.alloc(TAR_END_BYTES) });
  const bytes = pieces.reduce((sum, piece) => sum + piece.bytes, 0);
  return { bytes, read: (start, end) => readPieces(pieces, start, end) };
}

async function* readPieces(pieces: readonly Piece[], start: number, end: number): AsyncGenerator<Buffer> {
  let at = 0;
  for (const piece of pieces) {
    const from = Math.max(start - at, 0);
    const to = Math.min(end + 1 - at, piece.bytes);
    at += piece.bytes;
    if (to <= from) continue;
    if ('data' in piece) yield piece.data.subarray(from, to);
    else yield* readFile(piece.path, from, to);
  }
}

async function* readFile(path: string, from: number, to: number): AsyncGenerator<Buffer> {
  const handle = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW);
  try {
    for await (const part of handle.createReadStream({
      start: from,
      end: to - 1,
      autoClose: false,
      highWaterMark: READ_BYTES,
    }))
      yield part as Buffer;
  } finally {
    await handle.close();
  }
}
