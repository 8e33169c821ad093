import { describe, expect, it } from 'vitest';
import { expected, interpreterPlace, openRanks, referenceInit } from './fixtures/reference-run.ts';

/** Every strategy, and what can be set beside it, trains as PyTorch trains and to the same bits as DDP, on the interpreter. */

const strategies: Record<string, object | string> = {
  ddp: 'ddp',
  NO_SHARD: { kind: 'fsdp', shardingStrategy: 'NO_SHARD' },
  SHARD_GRAD_OP: { kind: 'fsdp', shardingStrategy: 'SHARD_GRAD_OP' },
  'SHARD_GRAD_OP without the limiter': { kind: 'fsdp', shardingStrategy: 'SHARD_GRAD_OP', limitAllGathers: false },
  FULL_SHARD: 'fsdp',
  'FULL_SHARD with forward prefetch': { kind: 'fsdp', forwardPrefetch: true },
  'FULL_SHARD, one unit': { kind: 'fsdp', autoWrapPolicy: null },
  'FULL_SHARD by size': { kind: 'fsdp', autoWrapPolicy: { minNumParams: 4000 } },
  'offloaded FULL_SHARD': 'fsdp_cpu_offload',
  'offloaded SHARD_GRAD_OP': { kind: 'fsdp', shardingStrategy: 'SHARD_GRAD_OP', cpuOffload: true },
  'offloaded NO_SHARD': { kind: 'fsdp', shardingStrategy: 'NO_SHARD', cpuOffload: true },
  'checkpointed layers': {
    kind: 'fsdp',
    activationCheckpointingPolicy: ['TransformerEncoderLayer', 'TransformerDecoderLayer'],
  },
};
const hybrid = {
  HYBRID_SHARD: { kind: 'fsdp', shardingStrategy: 'HYBRID_SHARD', deviceMesh: [2, 2] },
  'offloaded HYBRID_SHARD': { kind: 'fsdp', shardingStrategy: 'HYBRID_SHARD', deviceMesh: [2, 2], cpuOffload: true },
  HYBRID_SHARD_ZERO2: { kind: 'fsdp', shardingStrategy: 'HYBRID_SHARD_ZERO2', deviceMesh: [2, 2] },
};
const settings = {
  adam_world2: { optimizer: { kind: 'adam', lr: 1e-3 } },
  'adam_world2_clip0.5': { optimizer: { kind: 'adam', lr: 1e-3 }, trainer: { gradientClipVal: 0.5 } },
  adam_world2_accum2: { optimizer: { kind: 'adam', lr: 1e-3 }, trainer: { accumulateGradBatches: 2 } },
  adamw_world2: {
    optimizer: { kind: 'adamw', lr: 2e-3, betas: [0.8, 0.95], eps: 1e-7, weightDecay: 0.1 },
  },
  sgd_momentum_world2: { optimizer: { kind: 'sgd', lr: 0.1, momentum: 0.9 } },
} as const;

async function trained(config: object, steps: number) {
  const ranks = await openRanks(interpreterPlace, { config, source: await referenceInit() });
  const outcomes = await ranks.train(steps);
  const weights = await ranks.parameters();
  await ranks.close();
  return { outcomes, weights };
}

describe.each(Object.entries(settings))('%s', (setting, config) => {
  it('under every strategy: PyTorch’s losses and norms, the same bits as DDP', async () => {
    const steps = 3;
    const reference = await trained({ devices: 2, ...config, strategy: 'ddp' }, steps);
    reference.outcomes.forEach((byRank, step) => {
      const { losses, grad_norm } = expected[setting][step];
      byRank.forEach(({ loss, gradNorm }, rank) => {
        const mean = losses[rank].reduce((a, b) => a + b, 0) / losses[rank].length;
        expect(Math.abs(loss / mean - 1)).toBeLessThan(1e-4);
        expect(Math.abs(gradNorm / grad_norm - 1)).toBeLessThan(1e-4);
      });
    });
    for (const [name, strategy] of Object.entries(strategies)) {
      const run = await trained({ devices: 2, ...config, strategy }, steps);
      expect(run.outcomes, name).toEqual(reference.outcomes);
      expect(run.weights, name).toEqual(reference.weights);
    }
  });

  it('on four ranks in two rows: the same bits as DDP', async () => {
    const reference = await trained({ devices: 4, ...config, strategy: 'ddp' }, 3);
    for (const [name, strategy] of Object.entries(hybrid)) {
      const run = await trained({ devices: 4, ...config, strategy }, 3);
      expect(run.outcomes, name).toEqual(reference.outcomes);
      expect(run.weights, name).toEqual(reference.weights);
    }
  });
});

it('micro-batches reduced one by one: every strategy to the same bits, and close to one reduction', async () => {
  const config = { devices: 2, trainer: { accumulateGradBatches: 2, syncEveryMicroBatch: true } };
  const once = await trained({ ...config, trainer: { accumulateGradBatches: 2 }, strategy: 'ddp' }, 4);
  const reference = await trained({ ...config, strategy: 'ddp' }, 4);
  reference.outcomes.forEach((byRank, step) => {
    expect(byRank[0].lossMean).toBeCloseTo(once.outcomes[step][0].lossMean, 5);
  });
  for (const [name, strategy] of Object.entries(strategies)) {
    const run = await trained({ ...config, strategy }, 4);
    expect(run.outcomes, name).toEqual(reference.outcomes);
    expect(run.weights, name).toEqual(reference.weights);
  }
});
