import { afterAll, beforeAll, expect, test } from 'vitest';
import { attentionParamsOf } from '../ops/attention/attention.cases.ts';
import { attention } from '../ops/attention/attention.ts';
import { attentionGradKV } from '../ops/attention/attention-grad-kv.ts';
import { attentionGradQ } from '../ops/attention/attention-grad-q.ts';
import { onTensorCores } from '../ops/half/on-tensor-cores.ts';
import { type Kernel, type Params, shaderSource } from '../ops/kernel.ts';
import { matmulNN, matmulNNBias, matmulNT, matmulNTBias, matmulTN } from '../ops/matmul/matmul.ts';
import { type OpenDevice, openDevice } from '../runtime/device.ts';
import { offersTensorCores } from '../runtime/tensor-cores.ts';
import { openNullAdapter } from './adapters.ts';

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
];

const ATTENTION = attentionParamsOf({ name: '', B: 1, T: 70, H: 2, HD: 16, causal: 1, dropout: 0.1 });
const attentions: typeof products = [
  [attention, ['qkv']],
  [attentionGradQ, ['qkv', 'out']],
  [attentionGradKV, ['qkv']],
];

const shaders = [...products, ...attentions].flatMap(([kernel, halves]) => {
  const params = kernel.name.startsWith('attention') ? ATTENTION : PARAMS;
  const product = onTensorCores(kernel, halves, params)!;
  return product.tiled!.special!.map((variant) => {
    const one: Kernel = { ...product, tiled: { ...variant, fits: () => true, special: undefined } };
    return [`${product.name} ${variant.name}`, shaderSource(one, params, true)] as const;
  });
});

let open: OpenDevice;
beforeAll(async () => {
  open = await openDevice(await openNullAdapter());
});
afterAll(() => open.close());

test.each(shaders)('%s is right', async (_, code) => {
  const messages = (await open.device.createShaderModule({ code }).getCompilationInfo()).messages;
  expect(messages.map(({ lineNum, message }) => `${code.split('\n')[lineNum - 1]}: ${message}`)).toEqual([]);
});

test('an adapter whose subgroups are not 32 wide, or that has no such matrices, offers none', async () => {
  expect(offersTensorCores(await openNullAdapter())).toBe(false);
});
