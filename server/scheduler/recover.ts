import { readdir, readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { isSameProcess } from '../../engine/node/liveness.ts';
import type { RunStore } from '../runs/run-store.ts';
import { readTraces, removeSharedFolder, removeTraces } from '../workers/run-folder.ts';

const TERM_MS = 3000;
const KILL_MS = 5000;

/**
 * Ends what a run of an earlier server has left: worker processes, known by pid and start time so that a stranger under
 * an old pid is never touched, and its shared memory. Returns how many processes were still alive.
 */
export async function endOrphans(runFolder: string): Promise<number> {
  const traces = await readTraces(runFolder);
  if (!traces) return 0;
  const alive = traces.workers.filter(({ pid, startTime }) => isSameProcess(pid, startTime));
  await Promise.all(
    alive.map(async ({ pid, startTime }) => {
      signal(pid, startTime, 'SIGTERM');
      if (await isGone(pid, startTime, TERM_MS)) return;
      signal(pid, startTime, 'SIGKILL');
      await isGone(pid, startTime, KILL_MS);
    }),
  );
  await removeSharedFolder(traces.sharedFolder);
  await removeTraces(runFolder);
  return alive.length;
}

function signal(pid: number, startTime: number, name: 'SIGTERM' | 'SIGKILL'): void {
  if (!isSameProcess(pid, startTime)) return;
  try {
    process.kill(pid, name);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
  }
}

async function isGone(pid: number, startTime: number, withinMs: number): Promise<boolean> {
  for (const deadline = performance.now() + withinMs; ; await sleep(25)) {
    if (!isSameProcess(pid, startTime)) return true;
    if (performance.now() > deadline) return false;
  }
}

/** Lists the checkpoints that are whole on disk (their .sha256 is written last) and that the database does not know. */
export async function listUnknownCheckpoints(store: RunStore, runId: string, runFolder: string): Promise<void> {
  const folder = join(runFolder, 'checkpoints');
  const names = await readdir(folder).catch(() => [] as string[]);
  const known = new Set((await store.checkpoints(runId)).map(({ name }) => name));
  for (const name of names) {
    const step = /^step-(\d+)\.ckpt$/.exec(name)?.[1];
    if (step === undefined || known.has(name) || !names.includes(`${name}.sha256`)) continue;
    const sha256 = (await readFile(join(folder, `${name}.sha256`), 'utf8')).slice(0, 64);
    if (!/^[0-9a-f]{64}$/.test(sha256)) continue;
    const { size } = await stat(join(folder, name));
    await store.addCheckpoint({ runId, name, format: 'full', step: Number(step), sha256, bytes: BigInt(size) });
  }
}
