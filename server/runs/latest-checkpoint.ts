import type { ExperimentConfig } from '../../engine/config.ts';
import { StudioError } from '../../engine/errors.ts';
import { listCheckpoints } from '../../engine/node/checkpoint-list.ts';
import { checkpointsFolder } from '../../engine/node/checkpoint-store.ts';

export const LATEST = 'latest';

/**
 * The config with `checkpoint.resume: latest` replaced by the newest whole checkpoint that training can go on from. The run
 * folders are looked through in this order and the first that has one decides. Throws `not-found` where none has.
 */
export async function withLatestCheckpoint(
  config: ExperimentConfig,
  runFolders: Iterable<string> | AsyncIterable<string>,
  where: string,
): Promise<ExperimentConfig> {
  const { checkpoint } = config;
  if (checkpoint.resume !== LATEST) return config;
  for await (const folder of runFolders) {
    const listed = await listCheckpoints(checkpointsFolder(folder));
    const last = listed.findLast(({ format }) => format !== 'safetensors');
    if (last) return { ...config, checkpoint: { ...checkpoint, resume: last.path } };
  }
  throw new StudioError(
    'not-found',
    `checkpoint.resume: latest finds no whole checkpoint ${where}. Name one by its path, or leave resume out to start afresh`,
  );
}
