import { mkdir, readFile, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { ExperimentConfig } from '../config.ts';
import { StudioError } from '../errors.ts';
import type { CompiledRun } from '../schedule/compile.ts';
import { refuseHostMemory } from '../schedule/host-memory.ts';
import { freeMemoryBytes } from './shared-segment.ts';

const POLL_MS = 10;
const ROOM = 'yes';

export interface RoomCheck {
  readonly config: ExperimentConfig;
  readonly run: CompiledRun;
  readonly software: boolean;
  /** Whether other processes hold the other ranks; they meet in `sharedFolder`. */
  readonly alone: boolean;
  readonly sharedFolder: string;
  readonly timeoutMs: number;
}

/**
 * Looks whether the machine has the host memory that all ranks of the run need, before any of them takes some: rank 0
 * looks, the others wait for its word. Throws StudioError `out-of-memory` on rank 0, `peer-lost` on the others, `timeout`.
 */
export async function checkHostRoom({ config, run, software, alone, ...meeting }: RoomCheck): Promise<void> {
  const look = () => refuseHostMemory(config, run, { freeBytes: freeMemoryBytes(), software });
  if (alone) return look();
  const { sharedFolder, timeoutMs } = meeting;
  if (run.rank !== 0) return hearOf(sharedFolder, timeoutMs);
  await mkdir(sharedFolder, { recursive: true });
  try {
    look();
  } catch (error) {
    await tell(sharedFolder, (error as Error).message);
    throw error;
  }
  await tell(sharedFolder, ROOM);
}

const fileIn = (folder: string) => join(folder, 'host-room');

async function tell(folder: string, word: string): Promise<void> {
  await writeFile(`${fileIn(folder)}.new`, word);
  await rename(`${fileIn(folder)}.new`, fileIn(folder));
}

async function hearOf(folder: string, timeoutMs: number): Promise<void> {
  const until = performance.now() + timeoutMs;
  for (;;) {
    const word = await readFile(fileIn(folder), 'utf8').catch(() => null);
    if (word === ROOM) return;
    if (word !== null) throw new StudioError('peer-lost', `rank 0 does not start: ${word}`, { rank: 0 });
    if (performance.now() > until)
      throw new StudioError('timeout', `rank 0 did not say within ${timeoutMs} ms whether host memory suffices`);
    await sleep(POLL_MS);
  }
}
