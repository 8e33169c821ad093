import { createHash } from 'node:crypto';
import { lstat, readdir, readFile, rm, unlink } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import type { CheckpointKind } from '../checkpoint/stored-checkpoint.ts';
import { isWholeFolder, readDigestList, SAVING_MARK } from './checkpoint-folder.ts';
import { absent, DIGEST_SUFFIX, naming, syncFolder } from './file-bytes.ts';
import { isWholeFile, readDigest, removeLeftovers } from './whole-file.ts';

/** A whole checkpoint in a run's folder. */
export interface ListedCheckpoint {
  readonly path: string;
  readonly format: CheckpointKind;
  /** Optimizer steps done. */
  readonly step: number;
  readonly bytes: number;
  /** Of a file; for a folder, of its list of digests. */
  readonly sha256: string;
}

const NAME = /^step-(\d{1,15})(\.ckpt|\.safetensors)?$/;
const FORMATS: Readonly<Record<string, CheckpointKind>> = { '.ckpt': 'full', '.safetensors': 'safetensors' };

/** The name of a run's checkpoint after `step` steps; the stem alone for a folder. */
export function checkpointName(step: number, format: CheckpointKind): string {
  const suffix = Object.keys(FORMATS).find((key) => FORMATS[key] === format) ?? '';
  return `step-${String(step).padStart(6, '0')}${suffix}`;
}

/** The whole checkpoints of a folder, by step. What is being written, or was left by a killed writer, is not among them. */
export async function listCheckpoints(folder: string): Promise<ListedCheckpoint[]> {
  const listed: ListedCheckpoint[] = [];
  for (const name of (await naming(folder, () => readdir(folder).catch(absent))) ?? []) {
    const [, step, suffix = ''] = NAME.exec(name) ?? [];
    if (step === undefined) continue;
    const path = join(folder, name);
    const found = suffix === '' ? await measureFolder(path) : await measureFile(path);
    if (found) listed.push({ path, format: FORMATS[suffix] ?? 'sharded', step: Number(step), ...found });
  }
  return listed.sort((a, b) => a.step - b.step || (a.path < b.path ? -1 : 1));
}

async function measureFile(path: string): Promise<{ bytes: number; sha256: string } | null> {
  if (!(await isWholeFile(path))) return null;
  const [info, sha256] = await naming(path, () => Promise.all([lstat(path).catch(absent), readDigest(path)]));
  return info && sha256 ? { bytes: info.size, sha256 } : null;
}

async function measureFolder(path: string): Promise<{ bytes: number; sha256: string } | null> {
  if (!(await isWholeFolder(path))) return null;
  return naming(path, async () => {
    const digests = await readDigestList(path);
    const list = await readFile(`${path}${DIGEST_SUFFIX}`).catch(absent);
    if (!digests || !list) return null; // Deleted meanwhile.
    const infos = await Promise.all([...digests.keys()].map((name) => lstat(join(path, name)).catch(absent)));
    const bytes = infos.reduce((sum, info) => sum + (info?.size ?? 0), 0);
    return { bytes, sha256: createHash('sha256').update(list).digest('hex') };
  });
}

/**
 * Deletes a checkpoint, file or folder. Its digests go first: killed at any moment, this leaves a whole checkpoint or one
 * that does not count.
 */
export async function deleteCheckpoint(path: string): Promise<void> {
  await naming(path, async () => {
    await unlink(`${path}${DIGEST_SUFFIX}`).catch(absent);
    await syncFolder(dirname(path));
    await rm(path, { recursive: true, force: true });
    await syncFolder(dirname(path));
  });
}

/** Deletes the oldest whole checkpoints of a folder until `count` are left. Returns the paths deleted. */
export async function keepLastCheckpoints(folder: string, count: number): Promise<string[]> {
  const listed = await listCheckpoints(folder);
  const old = listed.slice(0, Math.max(0, listed.length - count)).map(({ path }) => path);
  for (const path of old) await deleteCheckpoint(path);
  return old;
}

/**
 * Removes what killed writers left in a run's checkpoint folder, files and folders: temporary names, digests without what
 * they are of, checkpoints without digests. Only while no one writes there. Returns the names removed.
 */
export async function removeCheckpointLeftovers(folder: string): Promise<string[]> {
  const removed = [];
  for (const suffix of Object.keys(FORMATS)) removed.push(...(await removeLeftovers(folder, suffix)));
  const names = await naming(folder, () => readdir(folder));
  for (const name of names) {
    const path = join(folder, name);
    const left = name.includes(SAVING_MARK) || (isFolderName(name) && !(await isWholeFolder(path)));
    if (!left) continue;
    await deleteCheckpoint(path);
    removed.push(name);
  }
  return removed;
}

const isFolderName = (name: string): boolean => NAME.exec(name) !== null && !name.includes('.');
