import { access, constants, open, realpath, rm, stat } from 'node:fs/promises';
import { dirname, resolve } from 'node:path';
import { StudioError } from '../../engine/errors.ts';
import { errorCode, whyNot } from '../../engine/node/errno.ts';

/** A file that a command will write once its work is done, and the option that names it. */
export interface WrittenFile {
  readonly option: string;
  readonly file: string;
  /** Whether a file that is there is written anew; one that is not is kept. */
  readonly replaces: boolean;
}

/** A file or folder that a command reads, and what names it: the config, or a field of it. */
export interface ReadFile {
  readonly name: string;
  readonly file: string;
}

/**
 * Looks before the work whether the files that it will write can be: nobody wants to hear it after the last step. None may be
 * one that the command reads, or lie in a folder that it reads, links followed. `made` is a folder that the command makes
 * first. Throws `invalid-config`, which names the option and says what to do.
 */
export async function checkWrittenFiles(
  files: readonly WrittenFile[],
  read: readonly ReadFile[],
  made: string | null,
): Promise<void> {
  const options = new Map<string, string>();
  for (const each of files) {
    const path = resolve(each.file);
    const other = options.get(path);
    if (other !== undefined) refuse(each, `${other} names the same file. Name another.`);
    options.set(path, each.option);
    for (const { name, file } of read)
      if (await isOrLiesIn(path, resolve(file))) refuse(each, `${name} is read from there. Name another.`);
    await checkWrittenFile(each, path, made);
  }
}

/** Whether a path is the other, by another name perhaps (a link), or lies in the folder that the other is. */
async function isOrLiesIn(path: string, other: string): Promise<boolean> {
  const there = await stat(other).catch(() => null);
  if (!there) return false;
  for (let at = await realpath(path).catch(() => path); ; at = dirname(at)) {
    const info = await stat(at).catch(() => null);
    if (info && info.dev === there.dev && info.ino === there.ino) return true;
    if (at === dirname(at)) return false;
  }
}

async function checkWrittenFile(each: WrittenFile, path: string, made: string | null): Promise<void> {
  const info = await stat(path).catch(() => null);
  if (info?.isDirectory()) refuse(each, 'that is a folder. Name a file in it.');
  if (info && !each.replaces) refuse(each, 'a file is there, which would be lost. Name another, or delete it.');
  const folder = dirname(path);
  if (!info && folder === made) return;
  const isFolder = await stat(folder).then(
    (found) => found.isDirectory(),
    () => false,
  );
  if (!isFolder) refuse(each, `there is no folder ${folder}. Make it, or name another.`);
  try {
    if (info) await access(path, constants.W_OK);
    else {
      // Made and taken away again: only that tells of everything that may be in the way.
      await (await open(path, 'wx')).close();
      await rm(path);
    }
  } catch (cause) {
    const code = errorCode(cause);
    refuse(each, `it cannot be written, since ${whyNot(code) ?? `the system says ${code}`}. Name another.`, cause);
  }
}

function refuse({ option, file }: WrittenFile, why: string, cause?: unknown): never {
  throw new StudioError('invalid-config', `${option} ${file}: ${why}`, { file }, { cause });
}
