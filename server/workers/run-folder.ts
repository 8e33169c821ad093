import { randomBytes } from 'node:crypto';
import {
  access,
  constants,
  mkdir,
  readdir,
  readFile,
  readlink,
  rename,
  rm,
  symlink,
  writeFile,
} from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { z } from 'zod';
import { isSameProcess, processStartTime } from '../../engine/node/liveness.ts';

const PREFIX = 'shard-studio-';
const NAME = /^shard-studio-[0-9a-f]{18}$/;
/** In a shared folder: a link that leads nowhere and says "pid startTime". */
const OWNER = 'owner';

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

/** Makes a shared folder, in the name of this process, and removes those whose process was killed before it could. */
export async function makeSharedFolder(folder: string): Promise<void> {
  await removeAbandoned(dirname(folder));
  await mkdir(folder, { mode: 0o700 });
  await symlink(`${process.pid} ${processStartTime(process.pid)}`, join(folder, OWNER));
}

async function removeAbandoned(place: string): Promise<void> {
  for (const name of await readdir(place)) {
    if (!NAME.test(name)) continue;
    const folder = join(place, name);
    try {
      const [pid, startTime] = (await readlink(join(folder, OWNER))).split(' ').map(Number);
      if (!isSameProcess(pid, startTime)) await removeSharedFolder(folder);
    } catch {
      // Just being made, somebody else's, or gone in the meantime: not ours to judge.
    }
  }
}

/** Removes a shared folder that this module named; anything else is left alone. */
export async function removeSharedFolder(folder: string): Promise<void> {
  const place = dirname(folder);
  if (![tmpdir(), '/dev/shm'].includes(place) || !NAME.test(folder.slice(place.length + 1))) return;
  await rm(folder, { recursive: true, force: true });
}
