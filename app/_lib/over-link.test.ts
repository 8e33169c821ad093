import { expect, it } from 'vitest';
import { checkConfig } from '../../engine/config.ts';
import { planExperiment } from '../../engine/schedule/plan.ts';
import { builtInProfiles } from '../../engine/schedule/profile.ts';
import { compareOverLink } from './over-link.ts';

const configOf = (strategy: object) => {
  const model = { kind: 'demo-transformer', vocabSize: 97, ninp: 64, nhead: 2, nhid: 256, nlayers: 2 };
  const { config, problems } = checkConfig({ model, devices: 4, strategy: { kind: 'fsdp', ...strategy } });
  if (!config) throw new Error(JSON.stringify(problems));
  return config;
};
const hybrid = (linkGBps: number | null) =>
  configOf({ shardingStrategy: 'HYBRID_SHARD', deviceMesh: [2, 2], linkGBps });
const profile = builtInProfiles.h200;

it('prices what hybrid sharding saves: only gradient shards cross between rows', () => {
  const slow = compareOverLink(hybrid(0.1), profile);
  if (!slow) throw new Error('no comparison');
  const { estimateMs: planned, params } = planExperiment(hybrid(0.1), profile);
  expect(slow.hybrid.estimateMs).toBe(planned);
  // Half of the gradients, in float32, padded; FULL_SHARD gets most of the weights twice, and of the gradients once.
  expect(slow.hybrid.crossingBytes / (params * 4)).toBeCloseTo(0.5, 1);
  expect(slow.fullShard.crossingBytes / (params * 4)).toBeGreaterThan(1.2);
  expect(slow.fullShard.estimateMs).toBeGreaterThan(1.5 * slow.hybrid.estimateMs);
  // The link is all that both wait for: what crosses takes its time on it.
  expect(slow.fullShard.estimateMs).toBeGreaterThan(slow.fullShard.crossingBytes / 1e5);
});

it('a link as fast as memory costs FULL_SHARD nothing', () => {
  const fast = compareOverLink(hybrid(1e6), profile);
  const alone = planExperiment(configOf({ shardingStrategy: 'FULL_SHARD' }), profile);
  expect(fast?.fullShard.estimateMs).toBeCloseTo(alone.estimateMs ?? 0, 6);
  expect(fast?.fullShard.peakBytes).toBe(alone.peakBytes);
});

it('is for hybrid runs over a link alone', () => {
  expect(compareOverLink(hybrid(null), profile)).toBeNull();
  expect(compareOverLink(configOf({ shardingStrategy: 'FULL_SHARD' }), profile)).toBeNull();
});
