import { existsSync } from 'node:fs';
import { basename, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { listCheckpoints, removeCheckpointLeftovers } from '../../engine/node/checkpoint-list.ts';
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

/**
 * Makes the list of a run's checkpoints what is whole on disk, and removes what killed writers left there. Only after its
 * workers have ended.
 */
export async function recoverCheckpoints(store: RunStore, runId: string, runFolder: string): Promise<void> {
  const folder = join(runFolder, 'checkpoints');
  const listed = await listCheckpoints(folder);
  const known = await store.checkpoints(runId);
  const names = new Set(listed.map(({ path }) => basename(path)));
  await store.removeCheckpoints(
    runId,
    known.flatMap(({ name }) => (names.has(name) ? [] : [name])),
  );
  for (const { path, format, step, sha256, bytes } of listed) {
    const name = basename(path);
    if (known.some((row) => row.name === name)) continue;
    await store.addCheckpoint({ runId, name, format, step, sha256, bytes: BigInt(bytes) });
  }
  if (existsSync(folder)) await removeCheckpointLeftovers(folder);
}
