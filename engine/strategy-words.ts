import type { StrategyConfig } from './config.ts';

/** A strategy in short, as lists name it: FULL_SHARD, with CPU offload where it is on. */
export function strategyWords(strategy: StrategyConfig): string {
  if (strategy.kind === 'ddp') return 'DDP';
  return strategy.cpuOffload ? `${strategy.shardingStrategy}, CPU offload` : strategy.shardingStrategy;
}

/** The same with all that tells the memory of two runs apart: activation checkpointing too. */
export function fullStrategyWords(strategy: StrategyConfig): string {
  // Configs stored by an older studio may lack the field.
  const recomputes = strategy.activationCheckpointingPolicy?.length > 0;
  return recomputes ? `${strategyWords(strategy)}, activation checkpointing` : strategyWords(strategy);
}
