import { expect, it } from 'vitest';
import { whyFullShardHoldsMore, whyOffloadHoldsMore } from './strategy-notes.ts';

const MiB = 2 ** 20;
const plan = (peakMiB: number, stagingMiB: number, gatheredMiB: number) => ({
  peakBytes: peakMiB * MiB,
  byCategory: {
    parameters: 4 * MiB,
    gathered: gatheredMiB * MiB,
    gradients: 4 * MiB,
    optimizer: 8 * MiB,
    activations: 4 * MiB,
    workspace: 0,
    staging: stagingMiB * MiB,
  },
});

it('names what FULL_SHARD holds more of than SHARD_GRAD_OP, where it does', () => {
  expect(whyFullShardHoldsMore(plan(30, 8, 4), plan(31, 6, 7))).toBeNull();
  expect(whyFullShardHoldsMore(plan(37, 10, 4), plan(35, 8, 5))).toMatch(
    /^More than SHARD_GRAD_OP by 2\.00 MiB: .*one more staging slot.* \(2\.00 MiB of staging\)/,
  );
  expect(whyFullShardHoldsMore(plan(36, 8, 6), plan(35, 8, 4))).toContain('(2.00 MiB of gathered)');
  expect(whyFullShardHoldsMore(plan(36, 8, 4), plan(35, 8, 4))).toContain('packs less tightly');
});

it('says that staging weighs more than what CPU offload takes off the device, where it does', () => {
  expect(whyOffloadHoldsMore(plan(10, 8, 2), plan(20, 4, 0))).toBeNull();
  expect(whyOffloadHoldsMore(plan(21, 4, 2), plan(20, 4, 0))).toBeNull();
  expect(whyOffloadHoldsMore(plan(21, 8, 2), plan(20, 4, 0))).toMatch(
    /by 1\.00 MiB: its staging is 8\.00 MiB, not 4\.00/,
  );
});
