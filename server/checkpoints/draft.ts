import { randomBytes } from 'node:crypto';
import { link, lstat, mkdir, rename, rm, unlink } from 'node:fs/promises';
import { join } from 'node:path';
import { StudioError } from '../../engine/errors.ts';
import { absent, DIGEST_SUFFIX, syncFolder } from '../../engine/node/file-bytes.ts';
import { PARTIAL_UPLOAD, quote } from '../data-folder.ts';

/** A folder in which a checkpoint is made ready: never listed, and where a killed server left one, gone at the next start. */
export interface Draft {
  readonly folder: string;
  /** Where what a person sends is put while it has no name yet. */
  readonly arriving: string;
  /** A message about something in it, as a person may read it. */
  told(message: string): string;
  remove(): Promise<void>;
}

/** Makes a draft below `uploads`. What arrives there is told of as `called`, as the person calls it. */
export async function openDraft(uploads: string, called: string): Promise<Draft> {
  const token = PARTIAL_UPLOAD + randomBytes(8).toString('hex');
  const folder = join(uploads, token);
  const arriving = join(folder, token);
  await mkdir(folder, { mode: 0o700 });
  return {
    folder,
    arriving,
    told: (message) =>
      message.replaceAll(arriving, quote(called)).replaceAll(`${folder}/`, '').replaceAll(token, quote(called)),
    remove: () => rm(folder, { recursive: true, force: true }),
  };
}

/** Calls `make` with a draft that is gone when this returns. */
export async function inDraft<T>(uploads: string, called: string, make: (draft: Draft) => Promise<T>): Promise<T> {
  const draft = await openDraft(uploads, called);
  try {
    return await make(draft);
  } catch (error) {
    if (!(error instanceof StudioError)) throw error;
    throw new StudioError(error.code, draft.told(error.message), error.details, { cause: error });
  } finally {
    await draft.remove();
  }
}

/**
 * Gives a whole checkpoint in a draft, file or folder with the digest beside it, its place below `uploads`: itself first,
 * then its digest. Throws `conflict` where something has the name by now: nothing is ever replaced.
 */
export async function placeDraft({ folder }: Draft, name: string, uploads: string): Promise<void> {
  const from = join(folder, name);
  const to = join(uploads, name);
  const taken = () =>
    new StudioError('conflict', `There is another checkpoint ${name} by now. Give yours another name.`);
  if (await lstat(to).catch(absent)) throw taken();
  await unlink(`${to}${DIGEST_SUFFIX}`).catch(absent);
  try {
    // Either fails where something came in between: a file's rename alone would replace it.
    if ((await lstat(from)).isDirectory()) await rename(from, to);
    else await link(from, to);
  } catch (error) {
    if (['EEXIST', 'ENOTEMPTY', 'ENOTDIR'].includes((error as NodeJS.ErrnoException).code ?? '')) throw taken();
    throw error;
  }
  await syncFolder(uploads);
  await rename(`${from}${DIGEST_SUFFIX}`, `${to}${DIGEST_SUFFIX}`);
  await syncFolder(uploads);
}
