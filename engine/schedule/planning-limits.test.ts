import { expect, test } from 'vitest';
import { parseConfig } from '../config.ts';
import { buildModel } from '../model/build-model.ts';
import { fittingSettings } from './budget.ts';
import { planExperiment } from './plan.ts';
import { PLANNING_LIMITS, refuseTooMany } from './planning-limits.ts';
import { builtInProfiles } from './profile.ts';

const shapes = [{ batch: 1, tokens: 35 }];
const plan = (config: object) => planExperiment(parseConfig(config), builtInProfiles.h200, 1000, shapes);
const small = { kind: 'demo-transformer', ninp: 2, nhead: 1, nhid: 1 };

test('more units than can be planned for are refused before any is', () => {
  const model = { ...small, nlayers: 1024 };
  const autoWrapPolicy = ['Linear', 'LayerNorm', 'TransformerEncoderLayer', 'TransformerDecoderLayer'];
  expect(() => plan({ model, strategy: { kind: 'fsdp', autoWrapPolicy } })).toThrow(
    expect.objectContaining({
      code: 'invalid-config',
      message: expect.stringMatching(
        /^A step would have [\d,]+ units, more than the 4,096 .*wrap fewer modules \(strategy\./,
      ),
    }),
  );
});

test('a limit is what is still planned', () => {
  for (const [what, most] of Object.entries(PLANNING_LIMITS) as [keyof typeof PLANNING_LIMITS, number][]) {
    expect(() => refuseTooMany(what, most)).not.toThrow();
    expect(() => refuseTooMany(what, most + 1)).toThrow(what);
  }
});

test('what would fit is searched among so many parts, thrifty settings first', () => {
  const config = parseConfig({ model: { ...small, nlayers: 4 }, devices: 4, strategy: 'ddp' });
  const model = buildModel(config.model, 1000);
  const fitting = (parts?: number) =>
    fittingSettings(config, 1000, { model, shapes, profile: builtInProfiles.h200 }, 3, parts);
  expect(fitting()).toHaveLength(3);
  expect(fitting(0)).toEqual(fitting().slice(0, 1));
});
