import { describe, expect, it } from 'vitest';
import { checkConfig } from './config.ts';
import { didYouMean, nearestWord } from './nearest-word.ts';

describe('the nearest word', () => {
  const known = ['train', 'plan', 'devices', 'checkpoint', 'sample', 'serve'];

  it.each([
    ['trian', 'train'],
    ['plann', 'plan'],
    ['device', 'devices'],
    ['CheckPoint', 'checkpoint'],
    ['check_points', 'checkpoint'],
    ['simple', 'sample'],
    ['seve', 'serve'],
  ])('%s: %s', (wanted, word) => expect(nearestWord(wanted, known)).toBe(word));

  it.each(['', 'x', 'rm', 'benchmark', 'constructor', 'trn', 'x'.repeat(10_000)])('nothing is near %s', (wanted) =>
    expect(nearestWord(wanted, known)).toBeNull(),
  );

  it('prefers the same letters, then the first', () => {
    expect(nearestWord('nLayer', ['nlayers', 'n_layer'])).toBe('n_layer');
    expect(nearestWord('cat', ['bat', 'rat'])).toBe('bat');
    expect([didYouMean('trian', known), didYouMean('nothing', known)]).toEqual(['. Did you mean train?', '']);
  });
});

describe('a config with a word that there is not', () => {
  it.each<[object, string, string]>([
    [{ trainr: {} }, 'trainr', 'unknown key. Did you mean trainer?'],
    [{ trainer: { step: 3 } }, 'trainer.step', 'unknown key. Did you mean steps?'],
    [{ trainer: { max_steps: 3 } }, 'trainer.max_steps', 'unknown key. Did you mean steps?'],
    [{ max_epochs: 3 }, 'max_epochs', 'unknown key. Did you mean trainer.steps?'],
    [{ trainer: { accelerator: 'gpu' } }, 'trainer.accelerator', 'unknown key. Did you mean adapter?'],
    [{ num_nodes: 2 }, 'num_nodes', 'unknown key. Did you mean devices?'],
    [{ bf16: true }, 'bf16', 'unknown key. Did you mean precision?'],
    [
      { strategy: { kind: 'fsdp', mixedPrecision: { paramDtype: 'float16' } } },
      'strategy.mixedPrecision.paramDtype',
      'unknown key. Did you mean precision?',
    ],
    [{ sharding_strategy: 'FULL_SHARD' }, 'sharding_strategy', 'unknown key. Did you mean strategy.shardingStrategy?'],
    [{ cpu_offload: true }, 'cpu_offload', 'unknown key. Did you mean strategy.cpuOffload?'],
    [{ state_dict_type: 'full' }, 'state_dict_type', 'unknown key. Did you mean strategy.stateDictType?'],
    [{ constructor: 1 }, 'constructor', 'unknown key. Check its spelling, or remove it'],
    [
      { trainer: { accumulate_grad_batches: 2 } },
      'trainer.accumulate_grad_batches',
      'unknown key. Did you mean accumulateGradBatches?',
    ],
    [{ strategy: { kind: 'fsdp', cpuOfload: true } }, 'strategy.cpuOfload', 'unknown key. Did you mean cpuOffload?'],
    [{ model: { kind: 'demo-transformer', nLayer: 1 } }, 'model.nLayer', 'unknown key. Did you mean nlayers?'],
    [
      { model: { kind: 'gpt2', hiddenSize: 8 } },
      'model.hiddenSize',
      'unknown key with model.kind gpt2. It goes with llama',
    ],
    [
      { strategy: { kind: 'ddp', cpuOffload: true } },
      'strategy.cpuOffload',
      'unknown key with strategy.kind ddp. It goes with fsdp',
    ],
    [
      { optimizer: { kind: 'sgd', betas: [0.9, 0.9] } },
      'optimizer.betas',
      'unknown key with optimizer.kind sgd. It goes with adam, adamw',
    ],
    [{ batchSize: 4 }, 'batchSize', 'unknown key. Did you mean data.batchSize?'],
    [{ model: { kind: 'gpt2', batch_size: 4 } }, 'model.batch_size', 'unknown key. Did you mean data.batchSize?'],
    [{ learningRate: 1 }, 'learningRate', 'unknown key. Did you mean optimizer.lr?'],
    [
      { optimizer: { kind: 'adam', groups: [{ match: '*', wightDecay: 0 }] } },
      'optimizer.groups.0.wightDecay',
      'unknown key. Did you mean weightDecay?',
    ],
    [
      { strategy: { kind: 'fsdp', autoWrapPolicy: { minNumParam: 5 } } },
      'strategy.autoWrapPolicy.minNumParam',
      'unknown key. Did you mean minNumParams?',
    ],
    [
      { model: { kind: 'gpt-2' } },
      'model.kind',
      'unknown kind. It is one of demo-transformer, gpt2, llama. Did you mean gpt2?',
    ],
    [{ model: { nLayer: 2 } }, 'model.kind', 'is missing. It is one of demo-transformer, gpt2, llama'],
    [{ model: { kind: 7 } }, 'model.kind', 'unknown kind. It is one of demo-transformer, gpt2, llama'],
    [
      { strategy: { kind: 'fsdp', shardingStrategy: 'full-shrad' } },
      'strategy.shardingStrategy',
      '"FULL-SHRAD" is none of FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD, HYBRID_SHARD_ZERO2, NO_SHARD. Did you mean FULL_SHARD?',
    ],
    [
      { checkpoint: { format: 'safetensor' } },
      'checkpoint.format',
      '"safetensor" is none of full, sharded, safetensors. Did you mean safetensors?',
    ],
    [JSON.parse('{"trainer": {"__proto__": 1}}'), 'trainer.__proto__', 'unknown key. Check its spelling, or remove it'],
  ])('%j', (config, path, message) => expect(checkConfig(config).problems).toMatchObject([{ path, message }]));
});
