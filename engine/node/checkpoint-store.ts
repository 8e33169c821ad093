import { randomUUID } from 'node:crypto';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { CheckpointStore } from '../trainer/save-checkpoint.ts';
import {
  abortCheckpointFolder,
  beginCheckpointFolder,
  finishCheckpointFolder,
  writeFolderFile,
} from './checkpoint-folder.ts';
import { checkpointName, keepLastCheckpoints } from './checkpoint-list.ts';
import { naming } from './file-bytes.ts';
import { freeMemoryBytes } from './shared-segment.ts';
import { createFileSink } from './whole-file.ts';

/** Where the checkpoints of a run are. */
export const checkpointsFolder = (runFolder: string): string => join(runFolder, 'checkpoints');

/** Checkpoints as files and folders below a run's folder. */
export function folderStore(runFolder: string): CheckpointStore {
  const folder = checkpointsFolder(runFolder);
  const prepare = () => naming(folder, () => mkdir(folder, { recursive: true }));
  return {
    async writeFile(format, step, write) {
      await prepare();
      const sink = await createFileSink(join(folder, checkpointName(step, format)));
      try {
        await write(sink);
        const { path, sha256 } = await sink.commit();
        return { path, format, step, sha256 };
      } catch (error) {
        await sink.abort();
        throw error;
      }
    },
    async beginFolder(step) {
      await prepare();
      return {
        folder: await beginCheckpointFolder(join(folder, checkpointName(step, 'sharded'))),
        saveId: randomUUID(),
      };
    },
    async writeRankFile(temporary, name, write) {
      const { file, result } = await writeFolderFile(temporary, name, write);
      return { file, entries: result };
    },
    async finishFolder({ folder: temporary, saveId }, step, content, files) {
      const target = join(folder, checkpointName(step, 'sharded'));
      try {
        const { path, sha256 } = await finishCheckpointFolder(temporary, target, content, saveId, files);
        return { path, format: 'sharded', step, sha256 };
      } catch (error) {
        await abortCheckpointFolder(temporary);
        throw error;
      }
    },
    abortFolder: abortCheckpointFolder,
    freeMemoryBytes,
    keepLast: (count) => keepLastCheckpoints(folder, count),
  };
}
