import { expect, test } from 'vitest';
import { builtInProfiles } from '../engine/schedule/profile.ts';
import { collectivesRun, trafficOf } from './collectives-plan.ts';

test.each([2, 4])('%i ranks move the bytes that each collective must, and no more', (world) => {
  const unitBytes = 2 ** 22;
  const run = collectivesRun({ rank: 1, world, units: 3, unitBytes, profile: builtInProfiles.h200 });
  const [gather, scatter, reduce] = run.steps.map(({ schedule }) => trafficOf(schedule));
  const all = 3 * unitBytes;
  const others = (all * (world - 1)) / world;
  expect(gather).toEqual({ upBytes: others, downBytes: all / world });
  expect(scatter).toEqual({ upBytes: others, downBytes: others });
  expect(reduce).toEqual({ upBytes: 2 * others, downBytes: others + all / world });
});
