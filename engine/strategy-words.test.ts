import { expect, it } from 'vitest';
import { parseConfig } from './config.ts';
import { fullStrategyWords, strategyWords } from './strategy-words.ts';

it('names a strategy with what it keeps on the host and what it computes again', () => {
  const of = (strategy: object | string) => parseConfig({ strategy }).strategy;
  const offloaded = of({ kind: 'fsdp', cpuOffload: true, activationCheckpointingPolicy: ['A'] });
  expect(fullStrategyWords(of('ddp'))).toBe('DDP');
  expect(fullStrategyWords(of({ kind: 'fsdp', shardingStrategy: 'SHARD_GRAD_OP' }))).toBe('SHARD_GRAD_OP');
  expect(strategyWords(offloaded)).toBe('FULL_SHARD, CPU offload');
  expect(fullStrategyWords(offloaded)).toBe('FULL_SHARD, CPU offload, activation checkpointing');
});
