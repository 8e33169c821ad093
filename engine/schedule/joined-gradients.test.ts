import { expect, test } from 'vitest';
import { parseConfig } from '../config.ts';
import { buildModel } from '../model/build-model.ts';
import { compileRun } from './compile.ts';
import { type AdapterProfile, builtInProfiles } from './profile.ts';
import { dispatches } from './schedule.ts';

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
