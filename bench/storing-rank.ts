import { join } from 'node:path';
import type { CheckpointKind } from '../engine/checkpoint/stored-checkpoint.ts';
import { openSoloMailbox } from '../engine/comm/in-process.ts';
import { parseConfig } from '../engine/config.ts';
import { buildModel } from '../engine/model/build-model.ts';
import { folderStore } from '../engine/node/checkpoint-store.ts';
import { openStart } from '../engine/node/open-start.ts';
import { openSharedMailbox } from '../engine/node/shared-memory.ts';
import { seededRandom } from '../engine/ops/kernel-case.ts';
import { compileRun } from '../engine/schedule/compile.ts';
import { builtInProfiles } from '../engine/schedule/profile.ts';
import { describeCheckpoint } from '../engine/trainer/describe-checkpoint.ts';
import { saveCheckpoint } from '../engine/trainer/save-checkpoint.ts';
import { fillRank } from '../engine/trainer/state.ts';
import { trainerRegions } from '../engine/trainer/train-rank.ts';

const VALUES = 2 ** 20;

/** A rank of an FSDP run of this model, without a device. */
export interface StoringRank {
  readonly model: object;
  readonly rank: number;
  readonly ranks: number;
  /** Its values are zeros, otherwise 4 MiB of random ones over and over. */
  readonly sparse?: boolean;
}

function compile({ model, rank, ranks }: StoringRank, further: object = {}) {
  const config = parseConfig({ model, devices: ranks, strategy: 'fsdp', ...further });
  const built = buildModel(config.model, null);
  const shapes = [{ batch: 1, tokens: 35 }];
  return {
    config,
    model: built,
    run: compileRun({ config, model: built, shapes, rank, profile: builtInProfiles.h200 }),
  };
}

/**
 * A rank that is ready to save what it would have copied from its device, with Adam's state: the ranks meet in `folder` by
 * shared memory, and the checkpoint appears below it, all as in training. Resolves to the save, once all ranks are there.
 */
export async function savingRank(
  folder: string,
  kind: CheckpointKind,
  setting: StoringRank,
): Promise<() => Promise<void>> {
  const { rank, ranks, sparse } = setting;
  const { config, run } = compile(setting);
  // Only the trainer's own regions: nothing is trained.
  const regions = trainerRegions({ ...run, regions: [] });
  const mailbox =
    ranks === 1
      ? openSoloMailbox(regions)
      : await openSharedMailbox({ path: join(folder, 'ranks'), rank, worldSize: ranks, regions });
  const region = regions.findIndex(({ name }) => name === 'save');
  const description = describeCheckpoint({ run, config }, { iter: 1, updates: 1, samples: 1, scaler: null });
  const random = seededRandom(1);
  const values = new Uint8Array(Float32Array.from({ length: VALUES }, () => (sparse ? 0 : random() - 0.5)).buffer);
  return async () => {
    const result = await saveCheckpoint({
      rank: { run, mailbox, region, read: async (_tensor, _offset, bytes) => values.subarray(0, bytes) },
      texts: { sizes: region + 1, pieces: region },
      store: folderStore(folder),
      config,
      format: kind,
      description,
    });
    if ('failed' in result) throw new Error(result.failed);
  };
}

/** A rank that is ready to load what it keeps: to train on, or, from weights alone, to begin with. */
export function loadingRank(path: string, setting: StoringRank): () => Promise<void> {
  const from = path.endsWith('.safetensors') ? { init: { from: path } } : { checkpoint: { resume: path } };
  const { config, model, run } = compile(setting, { trainer: { steps: 2 }, ...from });
  const nowhere = { clear: async () => undefined, write: async () => undefined, make: async () => undefined };
  return async () => {
    const start = await openStart(config, model);
    await fillRank(nowhere, run, start.parameters, start.optimizer);
    await start.close();
  };
}
