import type { ModelConfig } from '../config.ts';
import { StudioError } from '../errors.ts';
import { demoTransformer } from './demo-transformer.ts';
import type { Model } from './model.ts';

/**
 * The model of a config. `vocabSize` is the data's, used where the config leaves it out. Throws StudioError
 * `invalid-config` when neither says it, `not-built-yet` for a kind that is still to come.
 */
export function buildModel(config: ModelConfig, vocabSize: number | null): Model {
  const size = config.vocabSize ?? vocabSize;
  if (size === null)
    throw new StudioError(
      'invalid-config',
      'model.vocabSize: this data does not say how many words there are; give it',
    );
  if (vocabSize !== null && size < vocabSize)
    throw new StudioError(
      'invalid-config',
      `model.vocabSize: ${size} is fewer than the ${vocabSize} words of the data; leave it out, or give at least that`,
    );
  if (config.kind === 'demo-transformer') return demoTransformer({ ...config, vocabSize: size });
  throw new StudioError('not-built-yet', `model.kind: ${config.kind} is not built yet`);
}
