import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { interpreterPlace, openRanks } from './fixtures/reference-run.ts';
import { trainRun } from './fixtures/train-run.ts';

/** Meshes that are not powers of two, and a slower link between the rows. */

async function trained(config: object, steps = 4) {
  const ranks = await openRanks(interpreterPlace, { config });
  const outcomes = await ranks.train(steps);
  const weights = await ranks.parameters();
  await ranks.close();
  return { outcomes, weights };
}
const hybrid = (deviceMesh: [number, number], extra: object = {}) => ({
  devices: deviceMesh[0] * deviceMesh[1],
  strategy: { kind: 'fsdp', shardingStrategy: 'HYBRID_SHARD', deviceMesh, ...extra },
});

describe.each([
  [3, 2],
  [2, 3],
] as const)('a mesh of %i rows of %i ranks', (replicate, shard) => {
  it('repeats itself to the bit and stays within 1e-6 of DDP', async () => {
    const config = hybrid([replicate, shard]);
    const [first, again] = [await trained(config), await trained(config)];
    expect(again).toEqual(first);
    const ddp = await trained({ devices: replicate * shard, strategy: 'ddp' });
    first.outcomes.forEach((byRank, step) => {
      byRank.forEach(({ loss, gradNorm }, rank) => {
        const other = ddp.outcomes[step][rank];
        expect(Math.abs(loss / other.loss - 1)).toBeLessThan(1e-6);
        expect(Math.abs(gradNorm / other.gradNorm - 1)).toBeLessThan(1e-5);
      });
    });
  });
});

it('a slower link between the rows changes no bit, and no step is faster than its bytes', async () => {
  const plain = await trained(hybrid([2, 2]), 2);
  const linkGBps = 0.002;
  const ranks = await openRanks(interpreterPlace, { config: hybrid([2, 2], { linkGBps }) });
  const bytes = ranks.runs[0].steps[0].schedule.steps.reduce(
    (sum, { action }) => (action.type === 'collect' && action.linkGBps !== null ? sum + action.staging.bytes : sum),
    0,
  );
  expect(bytes).toBeGreaterThan(0);
  const from = performance.now();
  const outcomes = await ranks.train(2);
  expect(performance.now() - from).toBeGreaterThanOrEqual((2 * bytes) / (linkGBps * 1e6) - 2);
  expect(outcomes).toEqual(plain.outcomes);
  await ranks.close();
});

it('a run says in its log that the link between its rows is simulated', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'link-'));
  try {
    const logs = async (linkGBps: number | null) => {
      const strategy = { kind: 'fsdp', shardingStrategy: 'NO_SHARD', linkGBps };
      const run = { devices: 2, strategy, trainer: { steps: 1 }, checkpoint: { atEnd: false } };
      return (await trainRun(join(folder, String(linkGBps)), run)).logs;
    };
    expect(await logs(5)).toContain('between the rows of the mesh: simulated link, 5 GB/s');
    expect((await logs(null)).filter((line) => line.includes('simulated'))).toEqual([]);
  } finally {
    await rm(folder, { recursive: true });
  }
});
