import { createHash } from 'node:crypto';
import { lstat, readdir, readFile } from 'node:fs/promises';
import { extname, join } from 'node:path';
import { StudioError } from '../../engine/errors.ts';
import { deleteCheckpoint } from '../../engine/node/checkpoint-list.ts';
import { absent, DIGEST_SUFFIX } from '../../engine/node/file-bytes.ts';
import { type CheckpointInspection, inspectCheckpoint } from '../../engine/node/inspect-checkpoint.ts';
import { readDigest } from '../../engine/node/whole-file.ts';
import type { BroughtCheckpoint } from '../contract.ts';
import { type DataFolder, quote } from '../data-folder.ts';
import { measureCheckpoint } from '../runs/checkpoint-files.ts';
import { CHECKPOINT_ENDINGS } from './checkpoint-names.ts';

/** As much of an inspection as a list shows. */
type Looked = Pick<BroughtCheckpoint, 'holds' | 'problem'>;

/** The checkpoints that persons brought, or had made of others: files and folders of uploads/. */
export class BroughtCheckpoints {
  readonly #uploads: string;
  readonly #root: string;
  /** By name, with what tells one content from another. Opening is quick, but a list is asked for often. */
  readonly #looked = new Map<string, { readonly stamp: string; readonly looked: Looked }>();

  constructor({ uploads, root }: DataFolder) {
    this.#uploads = uploads;
    this.#root = root;
  }

  /** Newest first. */
  async list(): Promise<BroughtCheckpoint[]> {
    const names = await readdir(this.#uploads);
    for (const name of this.#looked.keys()) if (!names.includes(name)) this.#looked.delete(name);
    const found: BroughtCheckpoint[] = [];
    for (const name of names) {
      const one = await this.#find(name);
      if (one) found.push(one);
    }
    return found.sort((a, b) => (a.broughtAt < b.broughtAt ? 1 : a.broughtAt > b.broughtAt ? -1 : 0));
  }

  /** Throws `not-found`. */
  async get(name: string): Promise<BroughtCheckpoint> {
    const found = (await readdir(this.#uploads)).includes(name) ? await this.#find(name) : null;
    if (!found) throw new StudioError('not-found', `No checkpoint ${quote(name)} was brought.`);
    return found;
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
  async #find(name: string): Promise<BroughtCheckpoint | null> {
    if (name.startsWith('.')) return null;
    const path = join(this.#uploads, name);
    const info = await lstat(path).catch(absent);
    const fits = info?.isDirectory() || (info?.isFile() && CHECKPOINT_ENDINGS.includes(extname(name).toLowerCase()));
    if (!info || !fits) return null;
    const digest = await lstat(`${path}${DIGEST_SUFFIX}`).catch(absent);
    const measured = await measureCheckpoint(path);
    if (!measured) return null;
    const { bytes, stamp } = measured;
    const known = this.#looked.get(name);
    const looked = known?.stamp === stamp ? known.looked : await this.#look(path);
    // What could not be opened may be whole the next time: half copied now, or too many files were open.
    if (looked?.holds) this.#looked.set(name, { stamp, looked });
    if (!looked) return null;
    return {
      name,
      path: `uploads/${name}`,
      bytes,
      broughtAt: info.mtime.toISOString(),
      verifiedAt: digest?.mtime.toISOString() ?? null,
      ...looked,
    };
  }

  /** Null where it is gone. */
  async #look(path: string): Promise<Looked | null> {
    try {
      return { holds: holdsOf(await inspectCheckpoint(path)), problem: null };
    } catch (error) {
      if (!(error instanceof StudioError)) throw error;
      if (!(await lstat(path).catch(absent))) return null;
      return { holds: null, problem: error.message.replaceAll(`${this.#root}/`, '') };
    }
  }
}

function holdsOf({ kind, params, tensors, iter, optimizers }: CheckpointInspection): BroughtCheckpoint['holds'] {
  return { kind, params, tensors: tensors.length, step: iter, optimizer: optimizers.length > 0 };
}
