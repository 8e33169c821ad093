import { randomBytes } from 'node:crypto';
import { link, lstat, mkdir, readFile, rename, rm, unlink } from 'node:fs/promises';
import { join } from 'node:path';
import { StudioError } from '../../engine/errors.ts';
import { errorCode } from '../../engine/node/errno.ts';
import { absent, DIGEST_SUFFIX, syncFolder, writeSynced } from '../../engine/node/file-bytes.ts';
import { PARTIAL_UPLOAD, quote } from '../data-folder.ts';
import { freeName, isFree } from './checkpoint-names.ts';

const PLACING_ATTEMPTS = 10;
/** In a line of a list of digests: behind 64 digits and two more characters. */
const NAME_AT = 66;

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
 * then its digest. False, and nothing done, where something has the name by now: nothing is ever replaced.
 */
export function placeDraft(draft: Draft, name: string, uploads: string): Promise<boolean> {
  return inTurn(() => place(draft, name, uploads));
}

/** As `placeDraft`, at the first free name of `freeName`, whatever came while the draft was made. Gives that name. */
export function placeDraftFreely(
  draft: Draft,
  made: string,
  { stem, ending }: { readonly stem: string; readonly ending: string },
  uploads: string,
): Promise<string> {
  return inTurn(async () => {
    let name = made;
    // Only another program can take the name in between.
    for (let attempt = 0; attempt < PLACING_ATTEMPTS; attempt++) {
      const free = await freeName(uploads, stem, ending);
      await renameInDraft(draft, name, free);
      name = free;
      if (await place(draft, name, uploads)) return name;
    }
    throw new StudioError('conflict', `There is another checkpoint ${name} by now. Give yours another name.`);
  });
}

let placing: Promise<unknown> = Promise.resolve();

/** One after the other, so that a name that is free is so until something has it: nobody but this server places here. */
function inTurn<T>(action: () => Promise<T>): Promise<T> {
  const turn = placing.then(action);
  placing = turn.catch(() => undefined);
  return turn;
}

async function place({ folder }: Draft, name: string, uploads: string): Promise<boolean> {
  const from = join(folder, name);
  const to = join(uploads, name);
  if (!(await isFree(uploads, name))) return false;
  await unlink(`${to}${DIGEST_SUFFIX}`).catch(absent);
  try {
    // Either fails where something came in between: a file's rename alone would replace it.
    if ((await lstat(from)).isDirectory()) await rename(from, to);
    else await link(from, to);
  } catch (error) {
    if (['EEXIST', 'ENOTEMPTY', 'ENOTDIR'].includes(errorCode(error) ?? '')) return false;
    throw error;
  }
  await syncFolder(uploads);
  await rename(`${from}${DIGEST_SUFFIX}`, `${to}${DIGEST_SUFFIX}`);
  await syncFolder(uploads);
  return true;
}

/** Renames a whole checkpoint in a draft, also where its list of digests names it. */
async function renameInDraft({ folder }: Draft, from: string, to: string): Promise<void> {
  if (from === to) return;
  const list = join(folder, `${from}${DIGEST_SUFFIX}`);
  const lines = (await readFile(list, 'utf8')).split('\n');
  const renamed = lines.map((line) => line && line.slice(0, NAME_AT) + to + line.slice(NAME_AT + from.length));
  await writeSynced(join(folder, `${to}${DIGEST_SUFFIX}`), renamed.join('\n'));
  await rename(join(folder, from), join(folder, to));
  await unlink(list);
}
