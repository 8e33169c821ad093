import { quickStartConfigs } from '../../engine/quick-start.ts';

/** Experiments to start from: what a person would write, defaults left out. */
export interface Preset {
  readonly id: string;
  readonly label: string;
  readonly about: string;
  readonly config: unknown;
  /** Predict for this built-in adapter, when the run is not meant for the machine at hand. */
  readonly planFor?: 'h200';
}

export const PRESETS: readonly Preset[] = [
  {
    id: 'demo',
    label: 'Quick demo',
    about: 'The demo Transformer on Moby-Dick, FULL_SHARD on two ranks: half of the quick start',
    config: { ...quickStartConfigs.fullShard, name: 'demo-full-shard' },
  },
  {
    id: 'demo-ddp',
    label: 'Quick demo, DDP',
    about: 'The same under DDP: the other half',
    config: { ...quickStartConfigs.ddp, name: 'demo-ddp' },
  },
  {
    id: 'learning',
    label: 'See it learn',
    about: 'A small model for a hundred steps: a loss that falls',
    config: {
      name: 'small-100-steps',
      model: { kind: 'demo-transformer', ninp: 64, nhead: 4, nhid: 128 },
      data: { kind: 'moby-dick', batchSize: 4 },
      trainer: { steps: 100 },
    },
  },
  {
    id: 'gpt2',
    label: 'Small GPT-2',
    about: 'Four GPT-2 blocks with Hugging Face’s names, FULL_SHARD on two ranks',
    config: {
      name: 'small-gpt2',
      model: { kind: 'gpt2', nLayer: 4, nHead: 4, nEmbd: 128, nPositions: 128 },
      data: { kind: 'moby-dick', batchSize: 2 },
      optimizer: { kind: 'adamw', lr: 0.0005 },
      trainer: { steps: 50 },
    },
  },
  {
    id: 'llama',
    label: 'Small Llama',
    about: 'Four Llama blocks with shared key/value heads, FULL_SHARD on two ranks',
    config: {
      name: 'small-llama',
      model: {
        kind: 'llama',
        hiddenSize: 128,
        intermediateSize: 352,
        numHiddenLayers: 4,
        numAttentionHeads: 4,
        numKeyValueHeads: 2,
      },
      data: { kind: 'moby-dick', batchSize: 2 },
      optimizer: { kind: 'adamw', lr: 0.0005 },
      trainer: { steps: 50 },
    },
  },
  {
    id: 'budget',
    label: 'Will it fit?',
    about: 'DDP under a memory budget that is too small for it: what sharding is for',
    config: {
      name: 'ddp-on-a-budget',
      strategy: 'ddp',
      model: { kind: 'demo-transformer', ninp: 256, nhead: 4, nhid: 1024, nlayers: 4 },
      memoryBudgetMiB: 384,
    },
  },
  {
    id: 'guide',
    label: 'Guide, 1 B (to plan)',
    about: 'The 1.009 B parameter model of Lightning Fabric’s FSDP guide, planned for an H200',
    config: {
      name: 'guide-1b',
      model: { kind: 'demo-transformer', vocabSize: 33278, ninp: 1024, nhead: 64, nhid: 4096, nlayers: 32 },
      trainer: { steps: 3 },
      checkpoint: { atEnd: false },
    },
    planFor: 'h200',
  },
];
