import type { ModelConfig } from '../config.ts';
import { StudioError } from '../errors.ts';
import { demoTransformer } from './demo-transformer.ts';
import { gpt2 } from './gpt2.ts';
import { llama } from './llama.ts';
import type { Model } from './model.ts';

/**
 * The model of a config. `vocabSize` is the data's, used where the config leaves it out. Throws StudioError
 * `invalid-config` when neither says it, or when it is less than the data's.
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
  switch (config.kind) {
    case 'demo-transformer':
      return demoTransformer({ ...config, vocabSize: size });
    case 'gpt2':
      return gpt2({ ...config, vocabSize: size });
    case 'llama':
      return llama({ ...config, vocabSize: size });
  }
}
