import { lstat, rename } from 'node:fs/promises';
import { extname, join } from 'node:path';
import { StudioError } from '../../engine/errors.ts';
import { commitCheckpointFolder } from '../../engine/node/checkpoint-folder.ts';
import { sha256OfFile, writeDigested } from '../../engine/node/digested-file.ts';
import { absent, DIGEST_SUFFIX, writeSynced } from '../../engine/node/file-bytes.ts';
import { withoutEnding } from './checkpoint-names.ts';
import { type ReadingBounds, verifyInProcess } from './checkpoint-process.ts';
import { inDraft, placeDraft, placeDraftFreely } from './draft.ts';
import { unpackArchive } from './unpack-archive.ts';

/** What a person brings. */
export interface Arrival {
  readonly source: AsyncIterable<Buffer>;
  /** As the person calls it, and as it may be called here. */
  readonly brought: string;
  readonly name: string;
  readonly maxBytes: number;
  /** Aborts when the person goes away. */
  readonly signal: AbortSignal;
  readonly bounds?: ReadingBounds;
}

export interface Arrived {
  readonly name: string;
  readonly bytes: number;
  /** Of the file, or of a folder's list of digests. */
  readonly sha256: string;
}

/**
 * Brings a checkpoint into `uploads`, a file or, as a tar, a folder. It appears when it is whole, on disk and read through in
 * a process of its own, with its digests beside it; or not at all. A file that is there already keeps its name, other
 * content of the name gets a part of its digest into its own; a folder gets the next free name.
 */
export function importCheckpoint(arrival: Arrival, uploads: string): Promise<Arrived> {
  return extname(arrival.name) === '.tar' ? importArchive(arrival, uploads) : importFile(arrival, uploads);
}

async function importFile({ source, brought, name, maxBytes, ...reading }: Arrival, uploads: string): Promise<Arrived> {
  return inDraft(uploads, brought, async (draft) => {
    const { bytes, sha256 } = await receiveFile(source, draft.arriving, maxBytes);
    await verifyArrival(draft.arriving, reading);
    const stem = withoutEnding(name);
    const other = `${stem}-${sha256.slice(0, 8)}${name.slice(stem.length)}`;
    for (const candidate of [name, other]) {
      const made = join(draft.folder, candidate);
      const list = `${made}${DIGEST_SUFFIX}`;
      await rename(draft.arriving, made);
      await writeSynced(list, `${sha256}  ${candidate}\n`);
      if (await placeDraft(draft, candidate, uploads)) return { name: candidate, bytes, sha256 };
      const path = join(uploads, candidate);
      if ((await lstat(path).catch(absent))?.isFile() && (await sha256OfFile(path)) === sha256) {
        // It may have come in another way, and nobody had read it through.
        await rename(list, `${path}${DIGEST_SUFFIX}`);
        return { name: candidate, bytes, sha256 };
      }
      await rename(made, draft.arriving);
    }
    throw new StudioError('conflict', `There is another file ${name} already. Give yours another name.`);
  });
}

async function importArchive(
  { source, brought, name, maxBytes, ...reading }: Arrival,
  uploads: string,
): Promise<Arrived> {
  return inDraft(uploads, brought, async (draft) => {
    const { files, digests } = await unpackArchive(source, draft.arriving, maxBytes);
    for (const { name: file, sha256 } of digests ? files : []) {
      if (digests?.get(file) !== sha256)
        throw new StudioError('bad-file', `${file} in the archive is not what its list of digests says.`);
    }
    if (digests && digests.size !== files.length)
      throw new StudioError('bad-file', 'The archive lacks files that are on its list of digests.');
    await verifyArrival(draft.arriving, reading);
    const stem = name.slice(0, -'.tar'.length);
    const { bytes } = await commitCheckpointFolder(draft.arriving, join(draft.folder, stem), files);
    const placed = await placeDraftFreely(draft, stem, { stem, ending: '' }, uploads);
    return { name: placed, bytes, sha256: await sha256OfFile(join(uploads, `${placed}${DIGEST_SUFFIX}`)) };
  });
}

/** Reads it through apart from the server, by what its format has to check. Throws what is wrong; nothing is executed. */
async function verifyArrival(path: string, { signal, bounds }: Pick<Arrival, 'signal' | 'bounds'>): Promise<void> {
  for await (const line of verifyInProcess(path, signal, bounds)) {
    if (line.type === 'failed') throw new StudioError(line.error.code as StudioError['code'], line.error.message);
    if (line.type === 'verified') return;
  }
  throw Object.assign(new Error('The person who brought it went away.'), { code: 'ABORT_ERR' });
}

/** Writes what comes to `path`, safely on disk when this returns. Throws `too-large`, and 'bad-file' for nothing. */
export async function receiveFile(
  source: AsyncIterable<Buffer>,
  path: string,
  maxBytes: number,
): Promise<{ readonly bytes: number; readonly sha256: string }> {
  const written = await writeDigested(bounded(source, maxBytes), path, { mode: 0o600 });
  if (written.bytes === 0) throw new StudioError('bad-file', 'The file is empty.');
  return written;
}

async function* bounded(source: AsyncIterable<Buffer>, maxBytes: number): AsyncGenerator<Buffer> {
  let bytes = 0;
  for await (const part of source) {
    bytes += part.length;
    if (bytes > maxBytes) throw new StudioError('too-large', `The file has more than ${maxBytes} bytes.`);
    yield part;
  }
}
