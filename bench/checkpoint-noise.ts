import type { CheckpointContent } from '../engine/checkpoint/checkpoint-content.ts';
import { checkpointContent } from '../engine/checkpoint/run-content.ts';
import { parseConfig } from '../engine/config.ts';
import { buildModel } from '../engine/model/build-model.ts';
import { seededRandom } from '../engine/ops/kernel-case.ts';

const PIECE_BYTES = 4 * 2 ** 20;

/** What a run of this model, with Adam, saves after a step; in place of its values the same random 4 MiB over and over. */
export function noiseContent(model: object): CheckpointContent {
  const config = parseConfig({ model, devices: 1, strategy: 'ddp' });
  const parameters = buildModel(config.model, null).parameters.map(({ name, shape }) => ({ name, shape }));
  const random = seededRandom(1);
  const noise = new Uint8Array(Float32Array.from({ length: PIECE_BYTES / 4 }, () => random() - 0.5).buffer);
  const optimizer = { kind: 'adam', lr: 1e-3, weightDecay: 0, step: 1 } as const;
  const description = { parameters, optimizer, iter: 1, config, extra: { samples: 1 } };
  return checkpointContent(description, function* (_name, _part, _first, count) {
    for (let left = count * 4; left > 0; left -= PIECE_BYTES) yield noise.subarray(0, Math.min(PIECE_BYTES, left));
  });
}
