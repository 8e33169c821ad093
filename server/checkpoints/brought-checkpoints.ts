import { createHash } from 'node:crypto';
import { lstat, readdir, readFile } from 'node:fs/promises';
import { extname, join } from 'node:path';
import { StudioError } from '../../engine/errors.ts';
import { deleteCheckpoint } from '../../engine/node/checkpoint-list.ts';
import { absent, DIGEST_SUFFIX } from '../../engine/node/file-bytes.ts';
import { readDigest } from '../../engine/node/whole-file.ts';
import type { BroughtCheckpoint } from '../contract.ts';
import { type DataFolder, quote } from '../data-folder.ts';
import { measureCheckpoint } from '../runs/checkpoint-files.ts';
import { CHECKPOINT_ENDINGS } from './checkpoint-names.ts';
import { type BoundedInspection, lookInProcess } from './look-in-process.ts';

interface Found {
  readonly file: string;
  readonly stamp: string;
  readonly told: Omit<BroughtCheckpoint, 'holds' | 'problem'>;
}

interface Looked {
  readonly told: BroughtCheckpoint;
  /** Why it holds nothing that is known. */
  readonly error: StudioError | null;
}

/** The checkpoints that persons brought, or had made of others: files and folders of uploads/. */
export class BroughtCheckpoints {
  readonly #uploads: string;
  readonly #root: string;
  /** By name, with what tells one content from another. Opening takes a process, and a list is asked for often. */
  readonly #held = new Map<string, { readonly stamp: string; readonly holds: BroughtCheckpoint['holds'] }>();
  /** One look at all is enough for everybody who asks meanwhile. */
  #listing: Promise<BroughtCheckpoint[]> | null = null;

  readonly #lookAt: typeof lookInProcess;

  constructor({ uploads, root }: DataFolder, lookAt = lookInProcess) {
    this.#uploads = uploads;
    this.#root = root;
    this.#lookAt = lookAt;
  }

  /** Newest first. */
  list(): Promise<BroughtCheckpoint[]> {
    this.#listing ??= this.#list().finally(() => {
      this.#listing = null;
    });
    return this.#listing;
  }

  async #list(): Promise<BroughtCheckpoint[]> {
    const names = await readdir(this.#uploads);
    for (const name of this.#held.keys()) if (!names.includes(name)) this.#held.delete(name);
    const found: Found[] = [];
    for (const name of names) {
      const one = await this.#find(name);
      if (one) found.push(one);
    }
    const all = (await this.#look(found)).map(({ told }) => told);
    return all.sort((a, b) => (a.broughtAt < b.broughtAt ? 1 : a.broughtAt > b.broughtAt ? -1 : 0));
  }

  /** Throws `not-found`. */
  async get(name: string): Promise<BroughtCheckpoint> {
    return (await this.#one(name)).told;
  }

  /** One that can be opened. Throws `not-found`, or why it cannot be: `bad-file` as a rule, `io` where the machine is at fault. */
  async getOpened(name: string): Promise<BroughtCheckpoint & { holds: NonNullable<BroughtCheckpoint['holds']> }> {
    const { told, error } = await this.#one(name);
    if (error) throw new StudioError(error.code, told.problem ?? error.message);
    const { holds } = told;
    if (!holds) throw new StudioError('bad-file', `${quote(name)} is no checkpoint.`);
    return { ...told, holds };
  }

  async #one(name: string): Promise<Looked> {
    const found = (await readdir(this.#uploads)).includes(name) ? await this.#find(name) : null;
    const [one] = found ? await this.#look([found]) : [];
    if (!one) throw new StudioError('not-found', `No checkpoint ${quote(name)} was brought.`);
    return one;
  }

  /** The sha256 beside it: of the file, or of a folder's list; null where there is none, or it is gone. */
  async digest(name: string): Promise<string | null> {
    const path = join(this.#uploads, name);
    if ((await lstat(path).catch(absent))?.isFile()) return readDigest(path);
    const list = await readFile(`${path}${DIGEST_SUFFIX}`).catch(absent);
    return list && createHash('sha256').update(list).digest('hex');
  }

  /** Throws `not-found`. */
  async delete(name: string): Promise<void> {
    await this.get(name);
    await deleteCheckpoint(join(this.#uploads, name));
  }

  /** Null for what is no checkpoint by its name or kind, or was deleted meanwhile. */
  async #find(name: string): Promise<Found | null> {
    if (name.startsWith('.')) return null;
    const path = join(this.#uploads, name);
    const info = await lstat(path).catch(absent);
    const fits = info?.isDirectory() || (info?.isFile() && CHECKPOINT_ENDINGS.includes(extname(name).toLowerCase()));
    if (!info || !fits) return null;
    const digest = await lstat(`${path}${DIGEST_SUFFIX}`).catch(absent);
    const measured = await measureCheckpoint(path);
    if (!measured) return null;
    const { bytes, stamp } = measured;
    const broughtAt = info.mtime.toISOString();
    const verifiedAt = digest?.mtime.toISOString() ?? null;
    return { file: path, stamp, told: { name, path: `uploads/${name}`, bytes, broughtAt, verifiedAt } };
  }

  /** Each with what it holds, those that are gone left out. */
  async #look(found: readonly Found[]): Promise<Looked[]> {
    const unknown = found.filter(({ told, stamp }) => this.#held.get(told.name)?.stamp !== stamp);
    const looked = unknown.length
      ? await this.#lookAt(
          unknown.map(({ file }) => file),
          new AbortController().signal,
        )
      : new Map<string, BoundedInspection | StudioError>();
    const all: Looked[] = [];
    for (const { file, stamp, told } of found) {
      const answer = looked.get(file);
      // What could not be opened may be whole the next time: half copied now, or too many files were open.
      if (answer && !(answer instanceof StudioError)) this.#held.set(told.name, { stamp, holds: holdsOf(answer) });
      if (!(answer instanceof StudioError)) {
        const holds = this.#held.get(told.name)?.holds ?? null;
        all.push({ told: { ...told, holds, problem: null }, error: null });
      } else if (await lstat(file).catch(absent)) {
        const problem = answer.message.replaceAll(`${this.#root}/`, '');
        all.push({ told: { ...told, holds: null, problem }, error: answer });
      }
    }
    return all;
  }
}

function holdsOf({ kind, params, tensorCount, iter, optimizers }: BoundedInspection): BroughtCheckpoint['holds'] {
  return { kind, params, tensors: tensorCount, step: iter, optimizer: optimizers.length > 0 };
}
