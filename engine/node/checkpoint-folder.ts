import { createHash, randomBytes } from 'node:crypto';
import { lstat, mkdir, readdir, readFile, rename, rm, unlink } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { bufferedSink } from '../checkpoint/buffered-sink.ts';
import type { ByteSink } from '../checkpoint/byte-source.ts';
import type { CheckpointContent } from '../checkpoint/checkpoint-content.ts';
import { META_FILE } from '../checkpoint/dcp-folder.ts';
import { type DcpEntry, folderMetadata, writeMetaFile } from '../checkpoint/dcp-folder-writer.ts';
import { METADATA_FILE } from '../checkpoint/dcp-metadata.ts';
import { StudioError } from '../errors.ts';
import { type Digested, DigestedFile } from './digested-file.ts';
import { absent, DIGEST_SUFFIX, naming, syncFolder, TEMPORARY_MARK, writeSynced } from './file-bytes.ts';

/** Between the name to come and a random end: a folder that is being written, or was when its writer was killed. */
export const SAVING_MARK = '.saving-';

/** A file of a checkpoint folder, on disk: plain data, to be sent to rank 0. */
export interface FolderFile extends Digested {
  readonly name: string;
}

/** What a rank has written, for rank 0 to finish the folder with. */
export interface RankPart {
  readonly file: FolderFile;
  readonly entries: readonly DcpEntry[];
}

export interface WrittenFolder {
  readonly path: string;
  readonly bytes: number;
  /** Of the list of digests, and so of everything. */
  readonly sha256: string;
  readonly files: readonly FolderFile[];
}

/**
 * Makes the temporary folder in which every rank writes its file. Rank 0 only. 'conflict' if there is anything under the
 * final name: a checkpoint is never overwritten.
 *
 * What makes a folder count is the list of digests beside it, in the form of `sha256sum`. The order is: every file on disk,
 * list on disk under a temporary name, folder renamed, parent on disk, list renamed, parent on disk. Killed before the last
 * rename, the writers leave names that `removeCheckpointLeftovers` knows; at no moment is there a list beside a folder
 * that is not all there.
 */
export async function beginCheckpointFolder(path: string): Promise<string> {
  return naming(path, async () => {
    if ((await lstat(path).catch(absent)) !== null) {
      throw new StudioError(
        'conflict',
        `${path} exists. A checkpoint is never overwritten; choose another name or delete it.`,
        { file: path },
      );
    }
    const temporary = `${path}${SAVING_MARK}${randomBytes(6).toString('hex')}`;
    await mkdir(temporary);
    return temporary;
  });
}

/** Writes one file of the temporary folder, safely on disk when this returns, its sha256 computed on the way. */
export async function writeFolderFile<T>(
  temporary: string,
  name: string,
  write: (sink: ByteSink) => Promise<T>,
): Promise<{ readonly file: FolderFile; readonly result: T }> {
  const path = join(temporary, name);
  const file = await DigestedFile.create(path);
  const sink = bufferedSink(file);
  try {
    const result = await write(sink);
    await sink.flush();
    return { file: { name, ...(await file.finish()) }, result };
  } catch (error) {
    await file.close();
    throw error;
  }
}

/** Writes meta.pt and `.metadata` from what the ranks have written, and makes the folder appear. Rank 0 only. */
export async function finishCheckpointFolder(
  temporary: string,
  path: string,
  content: CheckpointContent,
  saveId: string,
  parts: readonly RankPart[],
): Promise<WrittenFolder> {
  const entries = parts.flatMap((part) => part.entries);
  const meta = await writeFolderFile(temporary, META_FILE, (sink) => writeMetaFile(content.rest, saveId, sink));
  const metadata = await writeFolderFile(temporary, METADATA_FILE, (sink) =>
    sink.write(folderMetadata(content, entries)),
  );
  return commitCheckpointFolder(temporary, path, [...parts.map(({ file }) => file), meta.file, metadata.file]);
}

/**
 * Makes a folder and its list of digests appear under the final name; if that fails, nothing of either stays. The folder
 * must hold these files and no others, each as long as it was written.
 */
export async function commitCheckpointFolder(
  temporary: string,
  path: string,
  files: readonly FolderFile[],
): Promise<WrittenFolder> {
  const list = `${path}${DIGEST_SUFFIX}`;
  const temporaryList = `${list}${TEMPORARY_MARK}${randomBytes(6).toString('hex')}`;
  const text = listText(path, files);
  let renamed = false;
  try {
    await naming(path, async () => {
      await checkFiles(temporary, files);
      await syncFolder(temporary);
      await unlink(list).catch(absent);
      await writeSynced(temporaryList, text);
      await syncFolder(dirname(path));
      await rename(temporary, path);
      renamed = true;
      await syncFolder(dirname(path));
      await rename(temporaryList, list);
      await syncFolder(dirname(path));
    });
  } catch (error) {
    await removeAll([list, temporaryList, renamed ? path : temporary]);
    throw error;
  }
  const bytes = files.reduce((sum, file) => sum + file.bytes, 0);
  return { path, bytes, sha256: createHash('sha256').update(text).digest('hex'), files };
}

/** What cannot be removed on a disk that fails is not whole, and goes at the next start. */
async function removeAll(paths: readonly string[]): Promise<void> {
  for (const path of paths) await rm(path, { recursive: true, force: true }).catch(() => undefined);
}

/** Removes a temporary folder, where a rank has failed. */
export async function abortCheckpointFolder(temporary: string): Promise<void> {
  await naming(temporary, () => rm(temporary, { recursive: true, force: true }));
}

/** In the order of the names, so that equal checkpoints have equal lists; `sha256sum -c` reads it from the parent folder. */
function listText(path: string, files: readonly FolderFile[]): string {
  const ordered = files.toSorted((a, b) => (a.name < b.name ? -1 : 1));
  return ordered.map(({ name, sha256 }) => `${sha256}  ${basename(path)}/${name}\n`).join('');
}

async function checkFiles(folder: string, files: readonly FolderFile[]): Promise<void> {
  const present = new Set(await readdir(folder));
  for (const { name, bytes } of files) {
    const info = await lstat(join(folder, name)).catch(absent);
    if (!present.delete(name) || info?.size !== bytes) {
      throw new StudioError('io', `${join(folder, name)} is not as it was written.`, { file: name, bytes });
    }
  }
  if (present.size > 0) throw new StudioError('internal', `${folder} holds ${[...present]}, which no rank reported.`);
}

/** The digests of a folder's files by name, or null where there is no list, or none that fits the folder's name. */
export async function readDigestList(path: string): Promise<ReadonlyMap<string, string> | null> {
  const text = await readFile(`${path}${DIGEST_SUFFIX}`, 'utf8').catch(absent);
  const lines = text?.split('\n').filter((line) => line !== '') ?? [];
  const digests = new Map<string, string>();
  for (const line of lines) {
    const [, sha256, folder, name] = /^([0-9a-f]{64}) [ *]([^/]+)\/([^/\\\0]+)$/.exec(line) ?? [];
    if (folder !== basename(path) || name === '..' || digests.has(name)) return null;
    digests.set(name, sha256);
  }
  return digests.has(METADATA_FILE) ? digests : null;
}

/** Whether a folder was committed: its list is there and so is each file on it. No file is read; see `verifyCheckpoint`. */
export async function isWholeFolder(path: string): Promise<boolean> {
  return naming(path, async () => {
    const digests = await readDigestList(path);
    if (!digests) return false;
    const infos = await Promise.all([...digests.keys()].map((name) => lstat(join(path, name)).catch(absent)));
    return infos.every((info) => info?.isFile());
  });
}
