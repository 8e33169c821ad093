import { randomBytes } from 'node:crypto';
import { access, constants, mkdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { z } from 'zod';

const PREFIX = 'shard-studio-';

/** What a run has outside its folder while it runs, so that a later server can end it: processes and shared memory. */
const Traces = z.object({
  sharedFolder: z.string(),
  workers: z.array(z.object({ pid: z.int().positive(), startTime: z.number() })),
});
export type Traces = z.infer<typeof Traces>;

const tracesFile = (runFolder: string) => join(runFolder, 'processes.json');

/** Writes down what a run has started, whole or not at all. */
export async function writeTraces(runFolder: string, traces: Traces): Promise<void> {
  const draft = `${tracesFile(runFolder)}.partial`;
  await writeFile(draft, JSON.stringify(traces));
  await rename(draft, tracesFile(runFolder));
}

/** What a run had started, or null when nothing was written down or what there is cannot be read. */
export async function readTraces(runFolder: string): Promise<Traces | null> {
  try {
    return Traces.parse(JSON.parse(await readFile(tracesFile(runFolder), 'utf8')));
  } catch {
    return null; // a run that never started has none, and a file that somebody else wrote is not to be trusted
  }
}

export async function removeTraces(runFolder: string): Promise<void> {
  await rm(tracesFile(runFolder), { force: true });
}

/** Makes the name, not yet the folder, of a run's shared memory: in /dev/shm, else with the temporary files. */
export async function nameSharedFolder(): Promise<string> {
  const inMemory = await access('/dev/shm', constants.W_OK).then(
    () => true,
    () => false,
  );
  return join(inMemory ? '/dev/shm' : tmpdir(), PREFIX + randomBytes(9).toString('hex'));
}

export async function makeSharedFolder(folder: string): Promise<void> {
  await mkdir(folder, { mode: 0o700 });
}

/** Removes a shared folder that this module named; anything else is left alone. */
export async function removeSharedFolder(folder: string): Promise<void> {
  if (
    ![tmpdir(), '/dev/shm'].includes(dirname(folder)) ||
    !/^shard-studio-[0-9a-f]{18}$/.test(folder.slice(dirname(folder).length + 1))
  )
    return;
  await rm(folder, { recursive: true, force: true });
}
