import { checkConfig, type ExperimentConfig } from '../config.ts';

/** Other settings for a run that does not fit: which are tried, and how they are put into its config and into words. */

/** Settings by dotted path that would fit, and what they reserve. */
export interface FittingSettings {
  readonly settings: Readonly<Record<string, unknown>>;
  readonly peakBytes: number;
}

/**
 * What is tried, in this order, to make a config fit: recomputed blocks, then sharding by and by, then offload, each with
 * and without recomputed blocks; then smaller batches as the config is, then with everything.
 */
export function* thriftierSettings(
  config: ExperimentConfig,
  blockClasses: readonly string[],
): Generator<Readonly<Record<string, unknown>>> {
  const recompute = { 'strategy.activationCheckpointingPolicy': blockClasses };
  const recomputes = config.strategy.activationCheckpointingPolicy.length > 0;
  const shard = (shardingStrategy: string) => ({
    'strategy.kind': 'fsdp',
    'strategy.shardingStrategy': shardingStrategy,
  });
  const offload = { ...shard('FULL_SHARD'), 'strategy.cpuOffload': true };
  const strategies = config.devices > 1 ? [shard('SHARD_GRAD_OP'), shard('FULL_SHARD'), offload] : [offload];
  if (!recomputes) yield recompute;
  for (const strategy of strategies) {
    yield strategy;
    if (!recomputes) yield { ...strategy, ...recompute };
  }
  if (config.data.kind === 'batches') return;
  for (const rest of [{}, { ...offload, ...recompute }])
    for (let size = Math.floor(config.data.batchSize / 2); size >= 1; size = Math.floor(size / 2))
      yield { ...rest, 'data.batchSize': size };
}

/** The config with other settings, or null where that is no legal config. What only another strategy has is left out. */
export function withSettings(
  config: ExperimentConfig,
  settings: Readonly<Record<string, unknown>>,
): ExperimentConfig | null {
  const changed: Record<string, unknown> = { ...config };
  const { strategy } = config;
  if ('strategy.shardingStrategy' in settings) {
    const { activationCheckpointingPolicy } = strategy;
    changed.strategy =
      strategy.kind === 'fsdp' ? { ...strategy, deviceMesh: null, linkGBps: null } : { activationCheckpointingPolicy };
  }
  for (const [path, value] of Object.entries(settings)) {
    const [section, key] = path.split('.');
    changed[section] = { ...(changed[section] as object), [key]: value };
  }
  return checkConfig(changed).config;
}

/** The settings as a person reads them. */
export function saidSettings(settings: Readonly<Record<string, unknown>>): string {
  return Object.entries(settings)
    .filter(([path]) => path !== 'strategy.kind' || settings['strategy.shardingStrategy'] === undefined)
    .map(([path, value]) => `${path} ${Array.isArray(value) ? `[${value.join(', ')}]` : value}`)
    .join(' with ');
}
