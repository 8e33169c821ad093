import { expect, test } from 'vitest';
import { parseConfig } from '../engine/config.ts';
import { buildModel } from '../engine/model/build-model.ts';
import { type CompiledRun, compileRun } from '../engine/schedule/compile.ts';
import { builtInProfiles } from '../engine/schedule/profile.ts';
import { acrossTheLink, linkBytes, MACHINES } from './slow-link-plan.ts';

function compiled(rank: number, strategy: object): CompiledRun {
  const config = parseConfig({
    model: { kind: 'demo-transformer', vocabSize: 97, ninp: 32, nhead: 4, nhid: 64, nlayers: 2 },
    devices: 4,
    strategy: { kind: 'fsdp', ...strategy },
  });
  const model = buildModel(config.model, null);
  return compileRun({ config, model, shapes: [{ batch: 1, tokens: 7 }], rank, profile: builtInProfiles.interpreter });
}

const links = (run: CompiledRun) =>
  run.steps[0].schedule.steps.flatMap(({ action }) => (action.type === 'collect' ? [action.linkGBps] : []));

test.each([0, 3])('rank %i of HYBRID_SHARD: what crosses is what the config has over the link', (rank) => {
  const run = compiled(rank, { shardingStrategy: 'HYBRID_SHARD', deviceMesh: MACHINES, linkGBps: 0.5 });
  expect(links(run)).toContain(0.5);
  expect(links(acrossTheLink(run, 0.5))).toEqual(links(run));
});

test('FULL_SHARD: two of three peers are on the other machine, and only their bytes take time', () => {
  const run = compiled(1, {});
  const across = acrossTheLink(run, 0.5);
  const collects = across.steps[0].schedule.steps.flatMap(({ action }) => (action.type === 'collect' ? [action] : []));
  for (const { linkGBps, staging, bytesPerPeer } of collects)
    expect(staging.bytes / linkGBps!).toBeCloseTo((2 * bytesPerPeer) / 0.5, 6);
  const hybrid = compiled(1, { shardingStrategy: 'HYBRID_SHARD', deviceMesh: MACHINES });
  // Two gathers and a reduce-scatter of half the parameters, beside an all-reduce of half of them in two halves.
  expect(linkBytes(run) / linkBytes(hybrid)).toBeGreaterThan(2);
  expect(linkBytes(run) / linkBytes(hybrid)).toBeLessThan(3.2);
});
