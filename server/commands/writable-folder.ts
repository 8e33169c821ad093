import { mkdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { StudioError } from '../../engine/errors.ts';
import { errorCode, whyNot } from '../../engine/node/errno.ts';

/** Makes sure that the data folder takes a file, before work whose result goes there. Throws `io`, which says what to do. */
export async function checkDataFolder(folder: string): Promise<void> {
  const probe = join(folder, `.writable-${process.pid}`);
  try {
    await mkdir(folder, { recursive: true, mode: 0o700 });
    await writeFile(probe, ' ');
    await rm(probe);
  } catch (cause) {
    const why = whyNot(errorCode(cause)) ?? (cause as Error).message;
    const message = `The data folder ${folder} cannot be used: ${why}. Make it writable, or name another in STUDIO_DATA.`;
    throw new StudioError('io', message, { folder }, { cause });
  }
}
