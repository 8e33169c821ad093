import { expect, test } from 'vitest';
import { parseConfig } from '../config.ts';
import { buildModel } from '../model/build-model.ts';
import { matmulNN, matmulTNSums } from '../ops/matmul/matmul.ts';
import { compileRun } from './compile.ts';
import { withJoinedGradients } from './joined-gradients.ts';
import { type AdapterProfile, builtInProfiles } from './profile.ts';
import { dispatches } from './schedule.ts';
import type { UnitProgram } from './unit-program.ts';

const model = { kind: 'demo-transformer', ninp: 32, nhead: 2, nhid: 64, nlayers: 2 } as const;

/** The products of backward, with what of the input's gradient each has. */
function gradients(profile: AdapterProfile, tokens: number, settings: object, freeze: readonly string[] = []) {
  const config = parseConfig({ model: { ...model, freeze }, ...settings });
  const run = compileRun({
    config,
    model: buildModel(config.model, 97),
    shapes: [{ batch: 1, tokens }],
    rank: 0,
    profile,
  });
  const { steps, tensors } = run.steps[0].schedule;
  return steps
    .flatMap(({ action }) => dispatches(action))
    .filter(({ kernel }) => /^matmul-(linear-grads|nn|tn)/.test(kernel.name))
    .map(({ kernel, operands, params }) => ({
      kernel: kernel.name,
      of: operands.map(({ tensor }) => tensors[tensor].name).find((name) => name.endsWith('weight.grad')),
      gated: params.gated,
      rows: params.wOffset / params.K,
    }));
}

// Two encoder layers of four linear layers each, two decoder layers of seven: the cross-attention's input projection counts
// twice, its queries and its keys and values.
const LAYERS = 2 * 4 + 2 * 7;

test('on a GPU each linear layer has all its gradients in one call, the same under every strategy', () => {
  const alone = gradients(builtInProfiles.h200, 35, { devices: 1 });
  const joined = alone.filter(({ kernel }) => kernel === 'matmul-linear-grads');
  expect(joined).toHaveLength(LAYERS);
  expect(joined.filter(({ gated }) => gated)).toHaveLength(4);
  const parts = joined.filter(({ rows }) => rows > 0);
  expect(parts).toHaveLength(2);
  for (const strategy of ['ddp', 'fsdp'])
    expect(gradients(builtInProfiles.h200, 35, { devices: 2, strategy })).toEqual(alone);
});

test('what needs one gradient only, has more rows than fit, or runs in software stays apart', () => {
  const apart = (calls: ReturnType<typeof gradients>) =>
    calls.filter(({ kernel }) => kernel !== 'matmul-linear-grads').length;
  const joined = (calls: ReturnType<typeof gradients>) => calls.length - apart(calls);
  expect(joined(gradients(builtInProfiles.h200, 37, { devices: 1 }))).toBe(0);
  expect(joined(gradients(builtInProfiles.software, 35, { devices: 1 }))).toBe(0);
  const frozen = gradients(builtInProfiles.h200, 35, { devices: 1 }, ['*linear1*']);
  expect(joined(frozen)).toBe(LAYERS - 4);
  expect(apart(frozen)).toBe(apart(gradients(builtInProfiles.h200, 35, { devices: 1 })) + 4);
});

/** The two products of backward of a layer, from value `first` on: of its weight from row `row` on. */
function layer(first: number, more: { outputs?: number; row?: number; sumsRow?: number; dx?: number } = {}) {
  const { outputs = 8, row = 0, sumsRow = row, dx = first + 2 } = more;
  const [dy, x, w, weight, sums] = [first, first + 1, 92, 90, 91].map((id) => ({ id }));
  const [rows, inputs] = [4, 16];
  const of = { aOffset: 0, lda: outputs, accumulate: 0 };
  return {
    weight: {
      kernel: matmulTNSums,
      operands: [dy, x, weight, sums],
      params: {
        ...{ ...of, M: outputs, N: inputs, K: rows, bOffset: 0, ldb: inputs, cOffset: row * inputs, ldc: inputs },
        ...{ sumsOffset: sumsRow, sumsAccumulate: 0 },
      },
    },
    input: {
      kernel: matmulNN,
      operands: [dy, w, { id: dx }],
      params: { ...of, M: rows, N: inputs, K: outputs, bOffset: row * inputs, ldb: inputs, cOffset: 0, ldc: inputs },
    },
  };
}

function joinedOf(...calls: readonly object[]): string[] {
  const program = { visits: [{ calls }] } as unknown as UnitProgram;
  return withJoinedGradients(program, builtInProfiles.h200).visits[0].calls.map(({ kernel }) => kernel.name);
}
const [JOINED, WEIGHT, INPUT] = ['matmul-linear-grads', matmulTNSums.name, matmulNN.name];

test('a gradient that takes the place of the input stays apart, as the weight’s needs that', () => {
  const { weight, input } = layer(0);
  expect(joinedOf(weight, input)).toEqual([JOINED]);
  const inPlace = layer(0, { dx: 1 });
  expect(joinedOf(inPlace.weight, inPlace.input)).toEqual([WEIGHT, INPUT]);
});

test('sums of more outputs than are added in one piece stay apart', () => {
  const [few, many] = [8192, 8196].map((outputs) => layer(0, { outputs }));
  expect(joinedOf(few.weight, few.input)).toEqual([JOINED]);
  expect(joinedOf(many.weight, many.input)).toEqual([WEIGHT, INPUT]);
});

test('a weight’s gradient passes that of other rows only where their sums are others too, in the same order', () => {
  const first = layer(0);
  const below = layer(10, { row: 8 });
  expect(joinedOf(first.weight, below.weight, first.input)).toEqual([WEIGHT, JOINED]);
  expect(joinedOf(below.weight, first.weight, below.input)).toEqual([WEIGHT, JOINED]);
  for (const sumsRow of [0, 7]) {
    const shared = layer(10, { row: 8, sumsRow });
    expect(joinedOf(first.weight, shared.weight, first.input)).toEqual([WEIGHT, WEIGHT, INPUT]);
  }
});
