import { initUniform } from '../ops/init-values/init-uniform.ts';
import {
  dtypeBytes,
  type Kernel,
  type Params,
  type TiledVariant,
  tiledVariant,
  type VariantChoices,
  variantClass,
} from '../ops/kernel.ts';
import { matmulNN, matmulNT, matmulTN } from '../ops/matmul/matmul.ts';
import type { OpenDevice } from './device.ts';
import { encodeFree, type FreeDispatch, freeDispatch } from './free-dispatch.ts';

/** A call that stands for its class of shapes. */
export interface TunedCall {
  readonly kernel: Kernel;
  readonly params: Params;
}

/** Each round of a variant is so many dispatches, and its time the least of so many rounds. */
const CHAIN = 32;
const ROUNDS = 5;
/** Weights take turns over so many bytes, so that none is found in a cache. */
const COLD_BYTES = 128 * 2 ** 20;
/** A choice has to be so much faster than the default: below that it is noise, and a run would change with it. */
const WORTH = 0.97;

const product = (kernel: Kernel, M: number, N: number, K: number): TunedCall => {
  const lda = kernel === matmulTN ? M : K;
  const ldb = kernel === matmulNT ? K : N;
  return { kernel, params: { M, N, K, aOffset: 0, lda, bOffset: 0, ldb, cOffset: 0, ldc: N, accumulate: 0 } };
};

/** Products of a transformer's layers, one of each class of shapes: few rows and many. */
export const tunedCalls: readonly TunedCall[] = [
  ...[matmulNT, matmulNN].flatMap((kernel) => [
    product(kernel, 35, 1024, 1024),
    product(kernel, 35, 1024, 4096),
    product(kernel, 35, 4096, 1024),
    product(kernel, 35, 4096, 4096),
    product(kernel, 2048, 2048, 1024),
  ]),
  product(matmulTN, 4096, 1024, 35),
  product(matmulTN, 2048, 2048, 1024),
];

/**
 * Measures every variant that fits each call and returns those that are faster than the default, by class. A few seconds.
 * The device must be a real GPU: on others tiled variants do not run. Rejects with StudioError as the device does.
 */
export async function tuneVariants(
  open: OpenDevice,
  calls: readonly TunedCall[] = tunedCalls,
  onMeasured: (call: TunedCall, variant: string, seconds: number) => void = () => undefined,
): Promise<VariantChoices> {
  const choices: Record<string, string> = {};
  for (const call of calls) {
    const { kernel, params } = call;
    const shape = variantClass(kernel, params);
    const usual = tiledVariant(kernel, params);
    const fitting = kernel.tiled?.special?.filter((variant) => variant.name && variant.fits(params)) ?? [];
    if (shape === null || !usual || fitting.length < 2) continue;
    const seconds = await measure(open, call, fitting);
    for (const [i, { name }] of fitting.entries()) onMeasured(call, name ?? '', seconds[i]);
    const best = fastest(seconds, fitting.indexOf(usual));
    if (fitting[best] !== usual) choices[shape] = fitting[best].name ?? '';
  }
  return choices;
}

/** Which of the variants is to run: the default, at index `usual`, unless another is faster by more than noise. */
export function fastest(seconds: readonly number[], usual: number): number {
  const best = seconds.indexOf(Math.min(...seconds));
  return seconds[best] < WORTH * seconds[usual] ? best : usual;
}

/** Seconds of a dispatch of each variant, in turns, so that what else the device does falls on all alike. */
async function measure(
  open: OpenDevice,
  { kernel, params }: TunedCall,
  variants: readonly TiledVariant[],
): Promise<number[]> {
  const { device, guard } = open;
  const buffers: GPUBuffer[] = [];
  const buffer = (size: number, usage: GPUBufferUsageFlags) => {
    const made = device.createBuffer({ size: Math.max(16, size), usage });
    buffers.push(made);
    return made;
  };
  try {
    const { M, N, K } = params;
    const sizes = [M * K, K * N, M * N].map((n, i) => n * dtypeBytes[kernel.operands[i].dtype]);
    const copies = M <= 64 || K <= 64 ? Math.ceil(COLD_BYTES / Math.max(...sizes)) : 1;
    const storage = GPUBufferUsage.STORAGE;
    const operands = Array.from({ length: copies }, () => sizes.map((size) => buffer(size, storage)));
    for (const [a, b] of operands) for (const each of [a, b]) await fillRandom(open, each, buffer);
    const dispatches: FreeDispatch[] = [];
    for (const { name } of variants)
      dispatches.push(await freeDispatch(open, { kernel, params, tiled: true, variant: name }, operands, buffer));
    const best = variants.map(() => Number.POSITIVE_INFINITY);
    for (let round = -1; round < ROUNDS; round++)
      for (const [i, dispatch] of dispatches.entries()) {
        const began = performance.now();
        submit(device, dispatch, CHAIN);
        await guard(device.queue.onSubmittedWorkDone());
        if (round >= 0) best[i] = Math.min(best[i], (performance.now() - began) / 1000 / CHAIN);
      }
    return best;
  } finally {
    for (const each of buffers) each.destroy();
  }
}

function submit(device: GPUDevice, dispatch: FreeDispatch, times: number): void {
  const encoder = device.createCommandEncoder();
  const pass = encoder.beginComputePass();
  for (let i = 0; i < times; i++) encodeFree(pass, dispatch, i);
  pass.end();
  device.queue.submit([encoder.finish()]);
}

/** Numbers, since a device may be faster on zeros. */
async function fillRandom(
  open: OpenDevice,
  target: GPUBuffer,
  buffer: (size: number, usage: GPUBufferUsageFlags) => GPUBuffer,
): Promise<void> {
  const params = { n: target.size / 4, offset: 0, first: 0, key: 1, bound: 1 };
  submit(open.device, await freeDispatch(open, { kernel: initUniform, params, tiled: false }, [[target]], buffer), 1);
}
