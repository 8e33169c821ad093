import { mkdir, rm, stat, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { StudioError } from '../../engine/errors.ts';
import { errorCode, whyNot } from '../../engine/node/errno.ts';

/** Makes a folder, and a file in it that goes again. Throws what the file system says. */
export async function tryFolder(folder: string): Promise<void> {
  const probe = join(folder, `.writable-${process.pid}`);
  await makeFolder(folder);
  await writeFile(probe, ' ');
  await rm(probe);
}

/** As mkdir with `recursive`, which never returns where a folder is there and takes none (/proc). */
async function makeFolder(folder: string): Promise<void> {
  const isFolder = async (path: string) => (await stat(path).catch(() => null))?.isDirectory() ?? false;
  if (await isFolder(folder)) return;
  const parent = dirname(folder);
  if (parent !== folder) await makeFolder(parent);
  await mkdir(folder, { mode: 0o700 }).catch(async (error) => {
    // Another process may have been quicker.
    if (!(await isFolder(folder))) throw error;
  });
}

/** Makes sure that the data folder takes a file, before work whose result goes there. Throws `io`, which says what to do. */
export async function checkDataFolder(folder: string): Promise<void> {
  try {
    await tryFolder(folder);
  } catch (cause) {
    const why = whyNot(errorCode(cause)) ?? (cause as Error).message;
    const message = `The data folder ${folder} cannot be used: ${why}. Make it writable, or name another in STUDIO_DATA.`;
    throw new StudioError('io', message, { folder }, { cause });
  }
}
