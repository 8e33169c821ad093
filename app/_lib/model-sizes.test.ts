import { describe, expect, it } from 'vitest';
import { parseConfig } from '../../engine/config.ts';
import { planExperiment } from '../../engine/schedule/plan.ts';
import { builtInProfiles } from '../../engine/schedule/profile.ts';
import { toDraft, withKind, withoutDefaults } from './config-draft.ts';
import { hasSize, MODEL_SIZES, sizesFor, withSize } from './model-sizes.ts';

describe.each(MODEL_SIZES)('$model.kind $label', (size) => {
  const kind = withKind(toDraft({}), 'model', size.model.kind);
  const draft = withSize(kind, size);

  it('is a legal config, also as the form sends it, with the parameters that it says', () => {
    const config = parseConfig(withoutDefaults(draft));
    expect(config).toEqual(parseConfig(draft));
    expect(planExperiment(config, builtInProfiles.h200).params).toBe(size.params);
  });

  it('is offered for its kind, and known again once it is filled in', () => {
    expect(sizesFor(kind)).toContain(size);
    expect(MODEL_SIZES.filter((one) => hasSize(draft, one))).toEqual([size]);
  });
});

it('goes from tiny to above a billion for every model', () => {
  for (const kind of ['demo-transformer', 'gpt2', 'llama']) {
    const params = MODEL_SIZES.filter(({ model }) => model.kind === kind).map((size) => size.params);
    expect(params).toEqual([...params].sort((a, b) => a - b));
    expect([params[0] < 1e7, (params.at(-1) as number) > 1e9]).toEqual([true, true]);
  }
});
