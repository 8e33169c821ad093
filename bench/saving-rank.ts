import { join } from 'node:path';
import type { CheckpointKind } from '../engine/checkpoint/stored-checkpoint.ts';
import { openSoloMailbox } from '../engine/comm/in-process.ts';
import { type ExperimentConfig, parseConfig } from '../engine/config.ts';
import { buildModel } from '../engine/model/build-model.ts';
import { folderStore } from '../engine/node/checkpoint-store.ts';
import { openSharedMailbox } from '../engine/node/shared-memory.ts';
import { compileRun } from '../engine/schedule/compile.ts';
import { builtInProfiles } from '../engine/schedule/profile.ts';
import { describeCheckpoint } from '../engine/trainer/describe-checkpoint.ts';
import { saveCheckpoint } from '../engine/trainer/save-checkpoint.ts';
import { trainerRegions } from '../engine/trainer/train-rank.ts';
import { noiseBytes } from './checkpoint-noise.ts';

/**
 * One rank of an FSDP run, ready to save what it would have copied from its device: the ranks meet in `folder` by shared memory
 * and the checkpoint appears below it, all as in training. Resolves to the save, once all ranks are there.
 */
export async function savingRank(
  folder: string,
  kind: CheckpointKind,
  { model, rank, ranks }: { readonly model: object; readonly rank: number; readonly ranks: number },
): Promise<() => Promise<void>> {
  const config: ExperimentConfig = parseConfig({ model, devices: ranks, strategy: 'fsdp' });
  const built = buildModel(config.model, null);
  const shapes = [{ batch: 1, tokens: 35 }];
  const run = compileRun({ config, model: built, shapes, rank, profile: builtInProfiles.h200 });
  // Only the trainer's own regions: nothing is trained.
  const regions = trainerRegions({ ...run, regions: [] });
  const mailbox =
    ranks === 1
      ? openSoloMailbox(regions)
      : await openSharedMailbox({ path: join(folder, 'ranks'), rank, worldSize: ranks, regions });
  const region = regions.findIndex(({ name }) => name === 'save');
  const description = describeCheckpoint({ run, config }, { iter: 1, updates: 1, samples: 1, scaler: null });
  return async () => {
    const result = await saveCheckpoint({
      rank: { run, mailbox, region, read: async (_tensor, _offset, bytes) => noiseBytes(bytes) },
      texts: { sizes: region + 1, pieces: region },
      store: folderStore(folder),
      config,
      format: kind,
      description,
    });
    if ('failed' in result) throw new Error(result.failed);
  };
}
