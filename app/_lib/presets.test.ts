import { expect, it } from 'vitest';
import { checkConfig, parseConfig } from '../../engine/config.ts';
import { planExperiment } from '../../engine/schedule/plan.ts';
import { builtInProfiles } from '../../engine/schedule/profile.ts';
import { toDraft, withoutDefaults } from './config-draft.ts';
import { PRESETS } from './presets.ts';

const MOBY_DICK_WORDS = 32_918;

it('offers only presets that the engine takes, also as the form sends them', () => {
  for (const { label, config } of PRESETS) {
    expect(checkConfig(config).problems, label).toEqual([]);
    expect(checkConfig(withoutDefaults(toDraft(config))).config, label).toEqual(checkConfig(config).config);
  }
});

it('“Will it fit?” does not under DDP, and does under FULL_SHARD', () => {
  const { config } = PRESETS.find(({ id }) => id === 'budget') as {
    config: { model: object; memoryBudgetMiB: number };
  };
  const peakMiB = (strategy: string) => {
    const model = { ...config.model, vocabSize: MOBY_DICK_WORDS };
    const planned = parseConfig({ ...config, model, strategy, memoryBudgetMiB: null });
    return planExperiment(planned, builtInProfiles.interpreter).peakBytes / 2 ** 20;
  };
  expect(peakMiB('ddp')).toBeGreaterThan(config.memoryBudgetMiB);
  expect(peakMiB('fsdp')).toBeLessThan(config.memoryBudgetMiB);
});
