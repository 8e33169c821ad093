import { CATEGORIES, type Category } from '../../engine/schedule/schedule.ts';
import { formatBytes } from './format.ts';
import type { Plan } from './prediction-protocol.ts';

const REASONS: Partial<Record<Category, string>> = {
  staging: 'it gathers each unit again in backward, through one more staging slot in each direction',
  gathered: 'in backward the next unit is gathered before the one before it is freed',
  gradients: 'its fullest moment is in backward, where a unit’s whole gradients wait to be reduced',
  activations: 'its fullest moment is where most activations are kept',
  workspace: 'the tables by which it places what it gathers are larger',
};

/**
 * Why FULL_SHARD, which keeps less gathered, still holds more than SHARD_GRAD_OP, as with small models it does; null where it
 * does not.
 */
export function whyFullShardHoldsMore(
  fullShard: Pick<Plan, 'peakBytes' | 'byCategory'>,
  shardGradOp: Pick<Plan, 'peakBytes' | 'byCategory'>,
): string | null {
  const moreBytes = fullShard.peakBytes - shardGradOp.peakBytes;
  if (moreBytes <= 0) return null;
  const [most] = CATEGORIES.map((category) => ({
    category,
    bytes: fullShard.byCategory[category] - shardGradOp.byCategory[category],
  })).sort((a, b) => b.bytes - a.bytes);
  const reason = most.bytes > 0 ? REASONS[most.category] : undefined;
  if (!reason)
    return 'More than SHARD_GRAD_OP: it packs less tightly, and with units so small it saves less than that.';
  return `More than SHARD_GRAD_OP by ${formatBytes(moreBytes)}: ${reason} (${formatBytes(most.bytes)} of ${most.category}), and with units so small it saves less than that.`;
}

/** Why CPU offload, which keeps the shards on the host, still holds more than FULL_SHARD without; null where it does not. */
export function whyOffloadHoldsMore(
  offloaded: Pick<Plan, 'peakBytes' | 'byCategory'>,
  fullShard: Pick<Plan, 'peakBytes' | 'byCategory'>,
): string | null {
  const moreBytes = offloaded.peakBytes - fullShard.peakBytes;
  const stagingBytes = offloaded.byCategory.staging;
  if (moreBytes <= 0 || stagingBytes <= fullShard.byCategory.staging) return null;
  return `More than FULL_SHARD on the device by ${formatBytes(moreBytes)}: its staging is ${formatBytes(stagingBytes)}, not ${formatBytes(fullShard.byCategory.staging)}, and with a model this small the slots weigh more than what leaves for the host.`;
}
