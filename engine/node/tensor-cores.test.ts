import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { attentionParamsOf } from '../ops/attention/attention.cases.ts';
import { attention } from '../ops/attention/attention.ts';
import { attentionGradKV } from '../ops/attention/attention-grad-kv.ts';
import { attentionGradQ } from '../ops/attention/attention-grad-q.ts';
import { attentionOnTensorCores } from '../ops/half/attention-on-tensor-cores.ts';
import { onTensorCores } from '../ops/half/on-tensor-cores.ts';
import { type Kernel, type Params, shaderSource } from '../ops/kernel.ts';
import { matmulNN, matmulNNBias, matmulNT, matmulNTBias, matmulTN } from '../ops/matmul/matmul.ts';
import { matmulNNGated, matmulNTReluDrop } from '../ops/matmul/matmul-hidden.ts';
import { matmulNNParts } from '../ops/matmul/matmul-parts.ts';
import { type OpenDevice, openDevice } from '../runtime/device.ts';
import { offersTensorCores } from '../runtime/tensor-cores.ts';
import { dispatches } from '../schedule/schedule.ts';
import { openNullAdapter } from './adapters.ts';
import { expectAsPlanned, expectSameBits } from './fixtures/laws.ts';
import { interpreterPlace, openRanks, type Place } from './fixtures/reference-run.ts';

// No software adapter has tensor cores: here their kernels are checked by Dawn's compiler alone. What they compute, a
// worker checks on the adapter that it gets (runtime/tensor-cores.ts).

const PARAMS: Params = {
  M: 4096,
  N: 1024,
  K: 1024,
  aOffset: 0,
  lda: 4096,
  bOffset: 0,
  ldb: 1024,
  cOffset: 0,
  ldc: 1024,
  accumulate: 0,
  biasOffset: 0,
  relu: 0,
  scale: 1,
  dropout: 0.2,
  maskKey0: 7,
  maskKey1: 1,
};

const products: readonly (readonly [Kernel, readonly string[]])[] = [
  [matmulNT, ['a', 'b']],
  [matmulNT, ['b']],
  [matmulNTBias, ['a', 'b', 'bias']],
  [matmulNTBias, ['b', 'bias']],
  [matmulNN, ['b']],
  [matmulNN, ['a', 'b']],
  [matmulNNBias, ['a', 'b', 'bias']],
  [matmulTN, ['a', 'b']],
  [matmulTN, ['a']],
  [matmulTN, ['b']],
  [matmulNTBias, ['a', 'b', 'bias', 'c']],
  [matmulNT, ['a', 'b', 'c']],
  [matmulNN, ['b', 'c']],
  [matmulNTReluDrop, ['a', 'b', 'bias']],
  [matmulNTReluDrop, ['a', 'b', 'bias', 'c']],
  [matmulNNGated, ['b', 'hidden']],
  [matmulNNGated, ['a', 'b', 'c', 'hidden']],
  [matmulNNParts, ['b']],
];

const shaders = products.flatMap(([kernel, halves]) => {
  const product = onTensorCores(kernel, halves, PARAMS)!;
  return product.tiled!.special!.map((variant) => {
    const one: Kernel = { ...product, tiled: { ...variant, fits: () => true, special: undefined } };
    return [`${product.name} ${variant.name}`, shaderSource(one, PARAMS, true)] as const;
  });
});

const ATTENTION = attentionParamsOf({ name: '', B: 1, T: 64, H: 2, HD: 16, causal: 1, dropout: 0.2 });
const attentions = [
  ...[[], ['out']].map((writes) => attentionOnTensorCores(attention, ['qkv'], writes, ATTENTION)!),
  ...[[], ['dqkv']].flatMap((writes) => [
    attentionOnTensorCores(attentionGradQ, ['qkv', 'out', 'dout'], writes, ATTENTION)!,
    attentionOnTensorCores(attentionGradKV, ['dout', 'qkv'], writes, ATTENTION)!,
  ]),
].map((kernel) => [kernel.name, shaderSource(kernel, ATTENTION, true)] as const);

test('attention is there for heads of 16 over whole blocks of rows, with what products make in halves', () => {
  const has = (halves: readonly string[], more: object) =>
    attentionOnTensorCores(attentionGradKV, halves, [], { ...ATTENTION, ...more }) !== null;
  expect(has(['qkv', 'dout'], { T: 512 })).toBe(true);
  expect(has(['qkv'], { T: 512 })).toBe(false);
  expect(has(['qkv', 'dout'], { T: 500 })).toBe(false);
  expect(has(['qkv', 'dout'], { HD: 32 })).toBe(false);
});

let open: OpenDevice;
beforeAll(async () => {
  open = await openDevice(await openNullAdapter());
});
afterAll(() => open.close());

test.each([...shaders, ...attentions])('%s is right', async (_, code) => {
  const messages = (await open.device.createShaderModule({ code }).getCompilationInfo()).messages;
  expect(messages.map(({ lineNum, message }) => `${code.split('\n')[lineNum - 1]}: ${message}`)).toEqual([]);
});

test('an adapter whose subgroups are not 32 wide, or that has no such matrices, offers none', async () => {
  expect(offersTensorCores(await openNullAdapter())).toBe(false);
});

describe('16-mixed with products of halves, in the interpreter', () => {
  const place: Place = { ...interpreterPlace, profile: { ...interpreterPlace.profile, tensorCores: true } };
  const model = { kind: 'demo-transformer', vocabSize: 97, ninp: 128, nhead: 8, nhid: 128, nlayers: 1, dropout: 0.1 };
  const shape = { batch: 2, tokens: 64 };
  const batch = (step: number, rank: number) => {
    const input = Array.from({ length: 128 }, (_, i) => (i * i + 7 * i + 31 * (step % 2) + 11 * rank) % 97);
    return { input, target: input.map((token) => (token * 5 + 3) % 97) };
  };
  const train = async (on: Place, settings: object, steps: number) => {
    const ranks = await openRanks(on, { config: { devices: 1, model, ...settings }, shape, batch });
    try {
      const outcomes = await ranks.train(steps);
      expectAsPlanned(ranks, [steps - 1]);
      return { outcomes, parameters: await ranks.parameters(), runs: ranks.runs };
    } finally {
      await ranks.close();
    }
  };

  test('losses are within 2 % of float32', { timeout: 120_000 }, async () => {
    const mixed = await train(place, { precision: '16-mixed' }, 8);
    const names = new Set(
      mixed.runs[0].steps[0].schedule.steps.flatMap((s) => dispatches(s.action).map((d) => d.kernel.name)),
    );
    for (const name of ['matmul-nt-bias', 'matmul-nt-relu-drop', 'matmul-nn', 'matmul-nn-gated', 'matmul-tn'])
      expect(
        [...names].some((n) => n.startsWith(`${name}, half`) && n.endsWith('tensor cores')),
        name,
      ).toBe(true);
    // What these make is halves as they make it, and nothing is left of the gate and of the hidden layer's dropout.
    expect(names).toContain('layer-norm-drop-residual-half, half bias, residual, weight, x, to half sum, y');
    expect(names).toContain('layer-norm-grad-drop, half s, weight, to half dropped');
    expect(names).toContain('attention-grad-kv, half dout, qkv, to half dqkv, tensor cores');
    expect([...names].filter((n) => /^(relu-grad|dropout-in-place)/.test(n))).toEqual([]);
    const whole = await train(place, { precision: '32-true' }, 8);
    expect(whole.outcomes[7][0].lossMean).toBeLessThan(0.9 * whole.outcomes[0][0].lossMean);
    mixed.outcomes.forEach(([{ lossMean }], step) => {
      const wanted = whole.outcomes[step][0].lossMean;
      expect(Math.abs(lossMean / wanted - 1), `step ${step}`).toBeLessThan(0.02);
    });
  });

  test('strategies are equal to the bit', { timeout: 120_000 }, async () => {
    const settings = { precision: '16-mixed', devices: 2 };
    const ddp = await train(place, { ...settings, strategy: 'ddp' }, 2);
    expectSameBits(await train(place, { ...settings, strategy: 'fsdp' }, 2), ddp, 'FULL_SHARD');
  });
});
