import { expect, it } from 'vitest';
import { checkConfig } from '../../engine/config.ts';
import { toDraft, withoutDefaults } from './config-draft.ts';
import { PRESETS } from './presets.ts';

it('offers only presets that the engine takes, also as the form sends them', () => {
  for (const { label, config } of PRESETS) {
    expect(checkConfig(config).problems, label).toEqual([]);
    expect(checkConfig(withoutDefaults(toDraft(config))).config, label).toEqual(checkConfig(config).config);
  }
});
