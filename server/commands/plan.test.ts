import { expect, it } from 'vitest';
import { parseConfig } from '../../engine/config.ts';
import { planExperiment } from '../../engine/schedule/plan.ts';
import { builtInProfiles } from '../../engine/schedule/profile.ts';
import { CATEGORIES } from '../../engine/schedule/schedule.ts';
import { toText } from './plan.ts';

const config = parseConfig({
  model: { kind: 'demo-transformer', ninp: 64, nhid: 64, vocabSize: 1000 },
  data: { kind: 'moby-dick', validationFraction: 0.1 },
  trainer: { validateEvery: 2 },
});

it('a column is what is live at one step of the schedule, and says at which', () => {
  const prediction = planExperiment(config, builtInProfiles.h200, 1000, [{ batch: 1, tokens: 35 }]);
  const lines = toText(config, builtInProfiles.h200, prediction, null).split('\n');
  const table = lines.slice(lines.findIndex((line) => line.startsWith('MiB live in a rank')) + 1);
  const cells = table.map((line) => line.trim().split(/ {2,}/));
  expect(cells[0]).toEqual(['in forward', 'in backward', 'in optimizer', 'in validation']);
  expect(cells[1]).toEqual(['at step', ...prediction.phases.map(({ atStep }) => String(atStep))]);
  expect(cells.slice(2).map(([name]) => name)).toEqual([...CATEGORIES, 'live']);
  const columns = [0, 1, 2, 3].map((i) => cells.slice(2).map((row) => Number(row[i + 1])));
  for (const column of columns) {
    const live = column.pop()!;
    // Each figure has two decimals.
    expect(Math.abs(column.reduce((sum, value) => sum + value, 0) - live)).toBeLessThan(0.01 * CATEGORIES.length);
  }
  const { timeline } = prediction;
  expect(Number(cells[9][2])).toBeCloseTo(timeline[prediction.phases[1].atStep].liveBytes / 2 ** 20, 2);
  expect(lines[1]).toMatch(/^a rank reserves [\d.,]+ MiB; most live [\d.,]+ MiB, in backward, at step \d+ \(/);
  expect(lines.join('\n')).toMatch(/about [\d.,]+ ms a training step, bound by/);
  expect(lines.join('\n')).not.toMatch(/e-\d|\b[KG]i?B\b/);
});

it('says so where most is live in validation', () => {
  const prediction = planExperiment(config, builtInProfiles.h200, 1000, [{ batch: 1, tokens: 35 }]);
  const validation = { ...prediction.validation!, liveBytes: prediction.liveBytes + 1 };
  const text = toText(
    config,
    builtInProfiles.h200,
    { ...prediction, validation, liveBytes: validation.liveBytes },
    null,
  );
  expect(text.split('\n')[1]).toMatch(/MiB, in validation$/);
});
