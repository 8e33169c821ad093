import { legalMeshes, type StrategyConfig } from '../../engine/config.ts';
import { strategyWords } from '../../engine/strategy-words.ts';
import { type Draft, valueAt, withChange, withKind, withValue } from './config-draft.ts';

/** A strategy that the planner can price beside the one chosen. */
export interface ComparableStrategy {
  readonly label: string;
  /** The config's strategy section. */
  readonly strategy: unknown;
}

/**
 * What one gets from this draft by choosing each strategy in the form: all that the strategies share stays, activation
 * checkpointing, units, offload. One more row turns CPU offload over. Hybrid ones only where the ranks form a mesh.
 */
export function comparableStrategies(draft: Draft): ComparableStrategy[] {
  const chosen = (kind: string) =>
    valueAt(draft, 'strategy.kind') === kind ? draft : withKind(draft, 'strategy', kind);
  const fsdp = chosen('fsdp');
  const sharded = (name: string) => withChange(fsdp, 'strategy.shardingStrategy', name);
  const hasMesh = valueAt(fsdp, 'strategy.deviceMesh') !== null || legalMeshes(Number(draft.devices)).length > 0;
  const names = ['NO_SHARD', 'SHARD_GRAD_OP', 'FULL_SHARD', ...(hasMesh ? ['HYBRID_SHARD_ZERO2', 'HYBRID_SHARD'] : [])];
  const offloads = valueAt(fsdp, 'strategy.cpuOffload') === true;
  const drafts = [
    chosen('ddp'),
    ...names.map(sharded),
    withValue(sharded('FULL_SHARD'), 'strategy.cpuOffload', !offloads),
  ];
  return drafts.map(({ strategy }) => ({ label: strategyWords(strategy as StrategyConfig), strategy }));
}
