import { expect, test } from 'vitest';
import { parseConfig } from '../config.ts';
import { buildModel } from '../model/build-model.ts';
import { compileRun } from './compile.ts';
import { builtInProfiles } from './profile.ts';
import { dispatches } from './schedule.ts';

const config = parseConfig({ model: { kind: 'demo-transformer', ninp: 128, nhead: 2, nhid: 4096, nlayers: 1 } });

/** The variants that a step records, by kernel. */
function recorded(variants: Record<string, string>, software = false) {
  const profile = { ...(software ? builtInProfiles.software : builtInProfiles.h200), variants };
  const model = buildModel(config.model, 97);
  const [step] = compileRun({ config, model, shapes: [{ batch: 1, tokens: 35 }], rank: 0, profile }).steps;
  return step.schedule.steps.flatMap(({ action }) =>
    dispatches(action).flatMap(({ kernel, variant }) => (variant === undefined ? [] : [`${kernel.name} ${variant}`])),
  );
}

test('a schedule records what its adapter’s profile chose for a class of shapes, and its own variants where the adapter is software', () => {
  expect(recorded({})).toEqual([]);
  const chosen = { 'floats nt few rows, wide, short': 'of a name' };
  expect(new Set(recorded(chosen))).toEqual(new Set(['matmul-nt-bias of a name']));
  expect(new Set(recorded(chosen, true))).toEqual(new Set(['row-square-sums row a thread']));
});
