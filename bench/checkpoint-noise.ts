import type { CheckpointContent } from '../engine/checkpoint/checkpoint-content.ts';
import { checkpointContent } from '../engine/checkpoint/run-content.ts';
import { parseConfig } from '../engine/config.ts';
import { buildModel } from '../engine/model/build-model.ts';
import { seededRandom } from '../engine/ops/kernel-case.ts';

const PIECE_BYTES = 4 * 2 ** 20;
let noise: Uint8Array<ArrayBuffer> | undefined;

/** In place of a checkpoint's values: at most 4 MiB, the same random ones at every call. */
export function noiseBytes(bytes: number): Uint8Array<ArrayBuffer> {
  if (!noise) {
    const random = seededRandom(1);
    noise = new Uint8Array(Float32Array.from({ length: PIECE_BYTES / 4 }, () => random() - 0.5).buffer);
  }
  return noise.subarray(0, bytes);
}

/** What a run of this model, with Adam, saves after a step, with noise for its values. */
export function noiseContent(model: object): CheckpointContent {
  const config = parseConfig({ model, devices: 1, strategy: 'ddp' });
  const parameters = buildModel(config.model, null).parameters.map(({ name, shape }) => ({ name, shape }));
  const optimizer = { kind: 'adam', lr: 1e-3, weightDecay: 0, step: 1 } as const;
  const description = { parameters, optimizer, iter: 1, config, extra: { samples: 1 } };
  return checkpointContent(description, function* (_name, _part, _first, count) {
    for (let left = count * 4; left > 0; left -= PIECE_BYTES) yield noiseBytes(Math.min(PIECE_BYTES, left));
  });
}
