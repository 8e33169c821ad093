import { packHalves } from '../ops/half/half.ts';
import { onTensorCores } from '../ops/half/on-tensor-cores.ts';
import { type Kernel, PARAMS_BYTES, type Params, tiledVariant, type View, writeParams } from '../ops/kernel.ts';
import { seededRandom } from '../ops/kernel-case.ts';
import { matmulNN, matmulNTBias, matmulTN } from '../ops/matmul/matmul.ts';
import type { OpenDevice } from './device.ts';
import { readMapped } from './staging.ts';

interface MatrixConfig {
  readonly componentType: string;
  readonly resultComponentType: string;
  readonly M: number;
  readonly N: number;
  readonly K: number;
}

/** Whether an adapter offers what the kernels for tensor cores need: 16x16x16 products of halves with float32 sums. */
export function offersTensorCores({ features, info }: GPUAdapter): boolean {
  const { subgroupMaxSize, subgroupMatrixConfigs = [] } = info as GPUAdapterInfo & {
    readonly subgroupMatrixConfigs?: Iterable<MatrixConfig>;
  };
  return (
    features.has('shader-f16') &&
    features.has('chromium-experimental-subgroup-matrix' as GPUFeatureName) &&
    subgroupMaxSize === 32 &&
    [...subgroupMatrixConfigs].some(
      ({ componentType, resultComponentType, M, N, K }) =>
        componentType === 'f16' && resultComponentType === 'f32' && M === 16 && N === 16 && K === 16,
    )
  );
}

/** Products of a linear layer, forward and backward, that cross the edges of every tile. */
const TESTED: readonly (readonly [Kernel, readonly string[]])[] = [
  [matmulNTBias, ['a', 'b', 'bias']],
  [matmulNN, ['b']],
  [matmulTN, ['b']],
];
const SIZE = { M: 144, N: 272, K: 168 };

/**
 * What is wrong with an adapter's tensor cores, in words; null if nothing is. Every variant is run against the plain TypeScript:
 * with ordinary numbers, with halves below the normal ones, a sum beyond the largest half, and one that is not finite.
 * Drivers are known that compute halves wrongly (crbug 42251215).
 */
export async function tensorCoreProblem(open: OpenDevice): Promise<string | null> {
  try {
    for (const [kernel, halves] of TESTED) {
      const params = paramsOf(kernel);
      const product = onTensorCores(kernel, halves, params);
      const variants = product?.tiled?.special ?? [];
      if (!product || variants.length === 0) return 'there is no kernel for them';
      const problems = await Promise.all(
        variants.map((variant) =>
          problemOf(open, { ...product, tiled: { ...variant, fits: () => true, special: undefined } }, params),
        ),
      );
      const problem = problems.find((text) => text !== null);
      if (problem) return problem;
    }
    return null;
  } catch (error) {
    return (error as Error).message;
  }
}

function paramsOf(kernel: Kernel): Params {
  const { M, N, K } = SIZE;
  const strides = {
    lda: kernel === matmulTN ? M : K,
    ldb: kernel === matmulNTBias ? K : N,
    ldc: N,
  };
  const offsets = { aOffset: 0, bOffset: 0, cOffset: 0, accumulate: 0 };
  return { ...SIZE, ...strides, ...offsets, ...(kernel === matmulNTBias ? { biasOffset: 0, relu: 0 } : {}) };
}

/** Operands of which row 0 of C is about 2^-20, row 1 about 1e5, row 2 not finite, and the rest ordinary. */
function operandsOf(kernel: Kernel, params: Params): View[] {
  const random = seededRandom(7);
  const { M, N, K, lda } = params;
  const elements: Readonly<Record<string, number>> = { a: M * K, b: N * K, c: M * N, bias: N };
  return kernel.operands.map(({ name, dtype }) => {
    const values = Float32Array.from({ length: elements[name] }, () => random() + 0.25);
    if (name === 'a') {
      const at = (m: number, k: number) => (kernel.name.startsWith('matmul-tn') ? k * lda + m : m * lda + k);
      for (let k = 0; k < K; k++) {
        values[at(0, k)] *= 2 ** -22;
        values[at(1, k)] *= 1000;
      }
      values[at(2, 5)] = 1e6;
    }
    if (name === 'bias') values.fill(0);
    return dtype === 'f16' ? packHalves(values) : values;
  });
}

async function problemOf(
  { device, kernels, guard }: OpenDevice,
  kernel: Kernel,
  params: Params,
): Promise<string | null> {
  const variant = tiledVariant(kernel, params)!;
  const views = operandsOf(kernel, params);
  // A shader that this driver or Dawn refuses is an answer, not the end of the device.
  device.pushErrorScope('validation');
  const compiling = kernels.pipeline({ kernel, params, operands: [], tiled: true });
  const [refused, pipeline] = await guard(Promise.all([device.popErrorScope(), compiling]));
  if (refused) return refused.message;
  const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
  const buffers = views.map((view) => {
    const buffer = device.createBuffer({ size: view.byteLength, usage });
    device.queue.writeBuffer(buffer, 0, view);
    return buffer;
  });
  const uniform = device.createBuffer({ size: PARAMS_BYTES, usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST });
  const bytes = new ArrayBuffer(PARAMS_BYTES);
  writeParams(kernel, params, kernel.threads(params), new DataView(bytes), 0);
  device.queue.writeBuffer(uniform, 0, bytes);
  const { size } = buffers[2];
  const readback = device.createBuffer({ size, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
  const encoder = device.createCommandEncoder();
  const pass = encoder.beginComputePass();
  const entries = [...buffers, uniform].map((buffer, binding) => ({ binding, resource: { buffer } }));
  pass.setPipeline(pipeline);
  pass.setBindGroup(0, device.createBindGroup({ layout: kernels.groupLayout(buffers.length), entries }));
  const [x, y, z] = variant.workgroups(params);
  pass.dispatchWorkgroups(x, y, z);
  pass.end();
  encoder.copyBufferToBuffer(buffers[2], 0, readback, 0, size);
  device.queue.submit([encoder.finish()]);
  const got = await guard(readMapped(readback, size, (mapped) => new Float32Array(mapped.slice().buffer)));
  for (const buffer of [...buffers, uniform, readback]) buffer.destroy();
  kernel.run(views, params);
  const want = views[2];
  const wrong = want.findIndex((value, i) =>
    Number.isFinite(value) ? !(Math.abs(got[i] - value) <= 1e-5 * Math.abs(value)) : Number.isFinite(got[i]),
  );
  return wrong < 0 ? null : `${kernel.name} ${variant.name} makes ${got[wrong]} of what is ${want[wrong]}`;
}
