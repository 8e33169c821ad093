import { expect, test } from 'vitest';
import { parseConfig } from '../config.ts';
import { buildModel } from '../model/build-model.ts';
import { compileRun } from './compile.ts';
import { type AdapterProfile, builtInProfiles } from './profile.ts';
import { dispatches } from './schedule.ts';

/** The kernels of attention's gradients in a step of so many heads of 8 columns over 64 tokens. */
function gradients(profile: AdapterProfile, nhead: number, precision = '32-true') {
  const model = { kind: 'demo-transformer', ninp: 8 * nhead, nhead, nhid: 64, nlayers: 1 } as const;
  const config = parseConfig({ model, precision, devices: 1 });
  const run = compileRun({
    config,
    model: buildModel(config.model, 97),
    shapes: [{ batch: 8, tokens: 64 }],
    rank: 0,
    profile,
  });
  const names = run.steps[0].schedule.steps
    .flatMap(({ action }) => dispatches(action))
    .map(({ kernel }) => kernel.name);
  return names.filter((name) => name.startsWith('attention-grad'));
}

test('a GPU computes the gradients of many narrow heads in one dispatch', () => {
  expect(gradients(builtInProfiles.h200, 32)).toEqual(Array(3).fill('attention-grad'));
  expect(gradients(builtInProfiles.h200, 32, '16-mixed')).toEqual(Array(3).fill('attention-grad, half out, qkv'));
});

test('few heads, and software, have one for the queries and one for keys and values', () => {
  const both = ['attention-grad-q', 'attention-grad-kv'];
  expect(gradients(builtInProfiles.h200, 16)).toEqual([...both, ...both, ...both]);
  expect(gradients(builtInProfiles.software, 32)).toEqual([...both, ...both, ...both]);
});
