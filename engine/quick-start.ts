/**
 * The two runs of the quick-start, as a person would write them: one small Transformer on the default corpus, whole on
 * each of two ranks, and cut into shards. Small enough that two cores without a GPU train both within a minute, long
 * enough that the loss falls. The corpus has 32,918 words, so the embedding is a third of the model: it is a unit too.
 */
const common = {
  model: { kind: 'demo-transformer', ninp: 32, nhead: 2, nhid: 512, nlayers: 2 },
  data: { kind: 'moby-dick' },
  optimizer: { kind: 'adam', lr: 0.01 },
  devices: 2,
  trainer: { steps: 15 },
  // One file that torch.load takes, of both.
  checkpoint: { format: 'full' },
} as const;

export const quickStartConfigs = {
  ddp: { name: 'DDP, 2 ranks', ...common, strategy: 'ddp' },
  fullShard: {
    name: 'FULL_SHARD, 2 ranks',
    ...common,
    strategy: { kind: 'fsdp', autoWrapPolicy: ['TransformerEncoderLayer', 'TransformerDecoderLayer', 'Embedding'] },
  },
} as const;
