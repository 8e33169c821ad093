/** The model of Lightning Fabric's FSDP guide, 1.009 billion parameters. */
export const GUIDE_MODEL = {
  kind: 'demo-transformer',
  vocabSize: 33278,
  ninp: 1024,
  nhead: 64,
  nhid: 4096,
  nlayers: 32,
} as const;
