import { packHalves, unpackHalves } from '../ops/half/half.ts';
import { onTensorCores } from '../ops/half/on-tensor-cores.ts';
import { type Kernel, PARAMS_BYTES, type Params, tiledVariant, type View, writeParams } from '../ops/kernel.ts';
import { seededRandom } from '../ops/kernel-case.ts';
import { matmulNN, matmulNTBias, matmulTN } from '../ops/matmul/matmul.ts';
import { matmulNNGated } from '../ops/matmul/matmul-hidden.ts';
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

/**
 * Largest difference of an element from the plain TypeScript, relative to it: all terms are positive. Of a result in halves:
 * one unit in its last place, since sums that differ by less may round apart.
 */
const TOLERANCE = { f32: { relative: 1e-5, absolute: 0 }, f16: { relative: 2 ** -10, absolute: 2 ** -24 } } as const;

/** One dispatch whose result is known. */
interface Trial {
  readonly kernel: Kernel;
  readonly halves: readonly string[];
  readonly params: Params;
  /** Operands by name, before they are rounded to halves. */
  readonly values: Readonly<Record<string, Float32Array<ArrayBuffer>>>;
}

/**
 * What is wrong with an adapter's tensor cores, in words; null if nothing is. Every variant is run against the plain TypeScript.
 * Drivers are known that compute halves wrongly (crbug 42251215).
 */
export async function tensorCoreProblem(open: OpenDevice): Promise<string | null> {
  try {
    for (const trial of productTrials()) {
      const { kernel, halves, params } = trial;
      const product = onTensorCores(kernel, halves, params);
      const variants = product?.tiled?.special ?? [];
      if (!product || variants.length === 0) return `there is no kernel for ${kernel.name}`;
      const problems = await Promise.all(
        variants.map((variant) =>
          problemOf(open, { ...product, tiled: { ...variant, fits: () => true, special: undefined } }, trial),
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

function uniform(elements: number, from: number, to: number, random: () => number): Float32Array<ArrayBuffer> {
  return Float32Array.from({ length: elements }, () => from + (to - from) * random());
}

/**
 * A linear layer, forward and backward, across the edges of every tile: ordinary numbers, row 0 of halves below the normal
 * ones, row 1 with sums beyond the largest half, row 2 not finite.
 */
function productTrials(): Trial[] {
  const [M, N, K] = [144, 272, 168];
  const trial = (kernel: Kernel, halves: readonly string[]): Trial => {
    const random = seededRandom(7);
    const tn = kernel === matmulTN;
    const strides = { lda: tn ? M : K, ldb: kernel === matmulNTBias ? K : N, ldc: N };
    const a = uniform(M * K, 0.25, 1.25, random);
    for (let k = 0; k < K; k++) {
      a[tn ? k * M : k] *= 2 ** -22;
      a[tn ? k * M + 1 : K + k] *= 1000;
    }
    a[tn ? 5 * M + 2 : 2 * K + 5] = 1e6;
    return {
      kernel,
      halves,
      params: {
        M,
        N,
        K,
        ...strides,
        aOffset: 0,
        bOffset: 0,
        cOffset: 0,
        accumulate: 0,
        biasOffset: 0,
        relu: 0,
        scale: 1.25,
      },
      values: {
        a,
        b: uniform(N * K, 0.25, 1.25, random),
        c: new Float32Array(M * N),
        bias: uniform(N, 0, 1e-3, random),
        hidden: uniform(M * N, -1, 1, random),
      },
    };
  };
  return [
    trial(matmulNTBias, ['a', 'b', 'bias']),
    trial(matmulNTBias, ['a', 'b', 'bias', 'c']),
    trial(matmulNN, ['b']),
    trial(matmulNNGated, ['b', 'hidden', 'c']),
    trial(matmulTN, ['b']),
  ];
}

async function problemOf(
  { device, kernels, guard }: OpenDevice,
  kernel: Kernel,
  { params, values }: Trial,
): Promise<string | null> {
  const variant = tiledVariant(kernel, params)!;
  const views = kernel.operands.map(({ name, dtype }): View => {
    return dtype === 'f16' ? packHalves(values[name]) : values[name].slice();
  });
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
  const encoder = device.createCommandEncoder();
  const pass = encoder.beginComputePass();
  const entries = [...buffers, uniform].map((buffer, binding) => ({ binding, resource: { buffer } }));
  pass.setPipeline(pipeline);
  pass.setBindGroup(0, device.createBindGroup({ layout: kernels.groupLayout(buffers.length), entries }));
  const [x, y, z] = variant.workgroups(params);
  pass.dispatchWorkgroups(x, y, z);
  pass.end();
  const { size } = buffers[2];
  const readback = device.createBuffer({ size, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
  encoder.copyBufferToBuffer(buffers[2], 0, readback, 0, size);
  device.queue.submit([encoder.finish()]);
  const read = await guard(readMapped(readback, size, (mapped) => mapped.slice().buffer));
  for (const buffer of [...buffers, uniform, readback]) buffer.destroy();
  kernel.run(views, params);
  const { dtype } = kernel.operands[2];
  const floats = (view: View) => (view instanceof Uint32Array ? unpackHalves(view) : view);
  const got = floats(dtype === 'f16' ? new Uint32Array(read) : new Float32Array(read));
  const want = floats(views[2]);
  const tolerance = dtype === 'f16' ? TOLERANCE.f16 : TOLERANCE.f32;
  const wrong = want.findIndex((value, i) =>
    Number.isFinite(value)
      ? !(Math.abs(got[i] - value) <= tolerance.relative * Math.abs(value) + tolerance.absolute)
      : Number.isFinite(got[i]),
  );
  return wrong < 0 ? null : `${kernel.name} ${variant.name} makes ${got[wrong]} of what is ${want[wrong]}`;
}
