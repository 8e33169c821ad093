import { expect, test } from 'vitest';
import { parseConfig } from '../config.ts';
import { buildModel } from '../model/build-model.ts';
import { PARTS } from '../ops/matmul/matmul-parts.ts';
import { compileRun } from './compile.ts';
import { type AdapterProfile, builtInProfiles } from './profile.ts';
import { dispatches } from './schedule.ts';

const model = { kind: 'demo-transformer', ninp: 64, nhead: 2, nhid: 4096, nlayers: 1 } as const;

/** The products of a step over 40 tokens in which a sum over 4,096 is split, with what adds each. */
function splits(profile: AdapterProfile, strategy: object) {
  const config = parseConfig({ model, ...strategy });
  const run = compileRun({
    config,
    model: buildModel(config.model, 97),
    shapes: [{ batch: 1, tokens: 40 }],
    rank: 0,
    profile,
  });
  const { steps, tensors } = run.steps[0].schedule;
  const all = steps.flatMap(({ action }) => dispatches(action));
  return all.flatMap((dispatch, i) => {
    if (dispatch.kernel.name !== 'matmul-nn-parts') return [];
    const next = all[i + 1];
    const sums = dispatch.operands[2];
    expect(next.operands[0]).toEqual(sums);
    return [{ add: next.kernel.name, name: tensors[sums.tensor].name, bytes: sums.bytes }];
  });
}

test('on a GPU the input gradient of a wide hidden layer is added in parts, the same under every strategy', () => {
  const alone = splits(builtInProfiles.h200, { devices: 1 });
  expect(alone.map(({ add, bytes }) => [add, bytes])).toEqual(
    Array(2).fill(['matmul-add-parts', 4 * PARTS * 40 * model.ninp]),
  );
  for (const strategy of ['ddp', 'fsdp']) expect(splits(builtInProfiles.h200, { devices: 2, strategy })).toEqual(alone);
});

test('software adds each sum whole', () => {
  expect(splits(builtInProfiles.software, { devices: 1 })).toEqual([]);
});

test.each([
  ['32-true', 'matmul-nn-parts'],
  ['16-mixed', 'matmul-nn-parts, half b, tensor cores'],
])('so is what each piece of a head’s logits gives its input, %s', (precision, parts) => {
  const model = { kind: 'demo-transformer', ninp: 128, nhead: 2, nhid: 8, nlayers: 1 };
  const config = parseConfig({ model, precision, devices: 1 });
  const compiled = compileRun({
    config,
    model: buildModel(config.model, 33_278),
    shapes: [{ batch: 2, tokens: 300 }],
    rank: 0,
    profile: { ...builtInProfiles.h200, tensorCores: true },
  });
  const all = compiled.steps[0].schedule.steps.flatMap(({ action }) => dispatches(action));
  const of = (name: string, params: readonly string[]) =>
    all.filter(({ kernel }) => kernel.name === name).map((dispatch) => params.map((p) => dispatch.params[p]));
  expect(of(parts, ['M', 'N', 'K'])).toEqual([
    [384, 128, 33_278],
    [216, 128, 33_278],
  ]);
  expect(of('matmul-add-parts', ['M', 'cOffset', 'accumulate'])).toEqual([
    [384, 0, 0],
    [216, 384 * 128, 0],
  ]);
});
