import { mkdir, readdir } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import type { ExperimentConfig } from '../../engine/config.ts';
import { StudioError } from '../../engine/errors.ts';
import { errorCode, whyNot } from '../../engine/node/errno.ts';
import { naming } from '../../engine/node/file-bytes.ts';
import { isSameProcess } from '../../engine/node/liveness.ts';
import { type Lock, tryLock } from '../../engine/node/lock-file.ts';
import { withLatestCheckpoint } from '../runs/latest-checkpoint.ts';
import { readTraces as readProcesses } from '../workers/run-folder.ts';
import { tryFolder } from './writable-folder.ts';

/**
 * The run's folder, made: --out, or a new one of this run alone. Throws `invalid-config` for an --out that is no folder, or
 * takes no file, `io` for a data folder that takes none.
 */
export async function makeRunFolder(dataFolder: string, name: string, out: string | undefined): Promise<string> {
  if (out === undefined) return makeDefaultFolder(join(dataFolder, 'trained'), name);
  const folder = resolve(out);
  try {
    await tryFolder(folder);
  } catch (cause) {
    const code = errorCode(cause);
    const why =
      code === 'EEXIST' || code === 'ENOTDIR'
        ? "a file is there; --out is the run's folder."
        : `it cannot be written, since ${whyNot(code) ?? `the system says ${code}`}. Name another folder, or leave it out.`;
    throw new StudioError('invalid-config', `--out ${out}: ${why}`, { folder }, { cause });
  }
  return folder;
}

/** Named by the second, the next free one if another run began in this one. */
async function makeDefaultFolder(trained: string, name: string): Promise<string> {
  return naming(trained, async () => {
    await mkdir(trained, { recursive: true });
    for (let ms = Date.now(); ; ms += 1000) {
      const stamp = new Date(ms).toISOString().slice(0, 19).replaceAll(/[-:]/g, '').replace('T', '-');
      const folder = join(trained, `${stamp}-${folderName(name)}`);
      try {
        await mkdir(folder);
        return folder;
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
      }
    }
  });
}

/** Keeps other runs out of the folder, this command's and the studio's. Throws `invalid-config` where one is in it. */
export async function lockRunFolder(folder: string): Promise<Lock> {
  const lock = await naming(folder, () => tryLock(join(folder, 'train.lock')));
  const workers = (await readProcesses(folder))?.workers ?? [];
  const other = 'pid' in lock ? lock : workers.find(({ pid, startTime }) => isSameProcess(pid, startTime));
  if ('release' in lock && !other) return lock;
  if ('release' in lock) await lock.release();
  throw new StudioError(
    'invalid-config',
    `${folder} is in use by a run, process ${other?.pid}. Name another folder with --out, or wait for its end.`,
  );
}

/** `latest`: of the folder that --out names, or of the newest run of this name without one. */
export async function resolveLatest(
  config: ExperimentConfig,
  dataFolder: string,
  out: string | undefined,
): Promise<ExperimentConfig> {
  if (out !== undefined) return withLatestCheckpoint(config, [resolve(out)], `in ${out}`);
  const trained = join(dataFolder, 'trained');
  const names = await readdir(trained).catch((): string[] => []);
  const suffix = `-${folderName(config.name)}`;
  const ours = names.filter((name) => name.slice(STAMP_LENGTH) === suffix).sort();
  const folders = ours.reverse().map((name) => join(trained, name));
  return withLatestCheckpoint(config, folders, `of a run ${config.name} in ${trained}`);
}

const STAMP_LENGTH = '20261129-153000'.length;

function folderName(name: string): string {
  return name.replaceAll(/[^A-Za-z0-9._-]+/g, '-').slice(0, 60);
}
