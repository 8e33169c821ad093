import { attention } from '../ops/attention/attention.ts';
import { attentionGradKV } from '../ops/attention/attention-grad-kv.ts';
import { attentionGradQ } from '../ops/attention/attention-grad-q.ts';
import { CONTROL_ELEMENTS } from '../ops/control.ts';
import { attentionOnTensorCores } from '../ops/half/attention-on-tensor-cores.ts';
import { packHalves, unpackHalves } from '../ops/half/half.ts';
import { onTensorCores } from '../ops/half/on-tensor-cores.ts';
import { type Kernel, PARAMS_BYTES, type Params, tiledVariant, type View, writeParams } from '../ops/kernel.ts';
import { seededRandom } from '../ops/kernel-case.ts';
import { matmulNN, matmulNTBias, matmulTN } from '../ops/matmul/matmul.ts';
import { matmulNNGated, matmulNTReluDrop } from '../ops/matmul/matmul-hidden.ts';
import { matmulNNParts, PARTS } from '../ops/matmul/matmul-parts.ts';
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
  return listsTensorCores({
    features: [...features],
    subgroupMaxSize,
    subgroupMatrixConfigs: [...subgroupMatrixConfigs],
  });
}

/** The same of an adapter as it is listed. */
export function listsTensorCores(listed: {
  readonly features: readonly string[];
  readonly subgroupMaxSize: number;
  readonly subgroupMatrixConfigs: readonly MatrixConfig[];
}): boolean {
  return (
    listed.features.includes('shader-f16') &&
    listed.features.includes('chromium-experimental-subgroup-matrix') &&
    listed.subgroupMaxSize === 32 &&
    listed.subgroupMatrixConfigs.some(
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
/** The same of attention and its gradients, beside the largest element: what is multiplied there, weights too, is rounded to halves. */
const ATTENTION_TOLERANCE = 2 ** -7;

/** One dispatch whose result is known. */
interface Trial {
  readonly name: string;
  readonly kernel: Kernel | null;
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
    for (const trial of [...productTrials(), ...attentionTrials()]) {
      const { kernel } = trial;
      const variants = kernel?.tiled?.special ?? [];
      if (!kernel || variants.length === 0) return `there is no kernel for ${trial.name}`;
      const problems = await Promise.all(
        variants.map((variant) =>
          problemOf(open, { ...kernel, tiled: { ...variant, fits: () => true, special: undefined } }, trial),
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
    const strides = { lda: tn ? M : K, ldb: kernel === matmulNTBias || kernel === matmulNTReluDrop ? K : N, ldc: N };
    const a = uniform(M * K, 0.25, 1.25, random);
    for (let k = 0; k < K; k++) {
      a[tn ? k * M : k] *= 2 ** -22;
      a[tn ? k * M + 1 : K + k] *= 1000;
    }
    a[tn ? 5 * M + 2 : 2 * K + 5] = 1e6;
    const offsets = { aOffset: 0, bOffset: 0, cOffset: 0, biasOffset: 0 };
    const drop = { dropout: 0.2, maskKey0: 7, maskKey1: 1 };
    const params = { M, N, K, ...strides, ...offsets, accumulate: 0, relu: 0, scale: 1.25, ...drop };
    return {
      name: kernel.name,
      kernel: onTensorCores(kernel, halves, params),
      params,
      values: {
        a,
        b: uniform(N * K, 0.25, 1.25, random),
        c: new Float32Array(kernel === matmulNNParts ? PARTS * M * N : M * N),
        bias: uniform(N, 0, 1e-3, random),
        hidden: uniform(M * N, -1, 1, random),
        control: new Float32Array(CONTROL_ELEMENTS),
      },
    };
  };
  return [
    trial(matmulNTBias, ['a', 'b', 'bias']),
    trial(matmulNTBias, ['a', 'b', 'bias', 'c']),
    trial(matmulNTReluDrop, ['a', 'b', 'bias', 'c']),
    trial(matmulNN, ['b']),
    trial(matmulNNGated, ['b', 'hidden', 'c']),
    trial(matmulTN, ['b']),
    trial(matmulNNParts, ['b']),
  ];
}

/** Attention and its gradients over two heads of two blocks of rows, causal, with dropout. */
function attentionTrials(): Trial[] {
  const [T, H, HD] = [64, 2, 16];
  const D = H * HD;
  const packed = { groupSize: 1, stride: 3 * D, qOffset: 0, kOffset: D, vOffset: 2 * D };
  const params = { B: 1, T, H, HD, ...packed, causal: 1, dropout: 0.2, maskKey0: 7, maskKey1: 1 };
  const random = seededRandom(7);
  const halves = (elements: number) => unpackHalves(packHalves(uniform(elements, -2, 2, random)), elements);
  const [qkv, dout, control] = [halves(3 * T * D), halves(T * D), new Float32Array(CONTROL_ELEMENTS)];
  const [out, dqkv] = [new Float32Array(T * D), new Float32Array(3 * T * D)];
  const [lse, delta] = [new Float32Array(T * H), new Float32Array(T * H)];
  attention.run([qkv, control, out, lse], params);
  attentionGradQ.run([qkv, control, out, dout, lse, dqkv.slice(), delta], params);
  const values = { qkv, control, out, dout, lse, dqkv, delta };
  const trial = (kernel: Kernel, reads: readonly string[], writes: readonly string[]): Trial => ({
    name: kernel.name,
    kernel: attentionOnTensorCores(kernel, reads, writes, params),
    params,
    values,
  });
  const forward = [[], ['out']].map((writes) => trial(attention, ['qkv'], writes));
  const gradients = [[], ['dqkv']].flatMap((writes) => [
    trial(attentionGradQ, ['qkv', 'out', 'dout'], writes),
    trial(attentionGradKV, ['qkv', 'dout'], writes),
  ]);
  return [...forward, ...gradients];
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
  const written = kernel.operands.flatMap(({ access, dtype }, i) => (access === 'read' ? [] : [{ i, dtype }]));
  const readbacks = written.map(({ i }) => {
    const { size } = buffers[i];
    const readback = device.createBuffer({ size, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
    encoder.copyBufferToBuffer(buffers[i], 0, readback, 0, size);
    return readback;
  });
  device.queue.submit([encoder.finish()]);
  const read = await guard(
    Promise.all(readbacks.map((buffer) => readMapped(buffer, buffer.size, (mapped) => mapped.slice().buffer))),
  );
  for (const buffer of [...buffers, uniform, ...readbacks]) buffer.destroy();
  kernel.run(views, params);
  for (const [at, { i, dtype }] of written.entries()) {
    const floats = (view: View) => (view instanceof Uint32Array ? unpackHalves(view) : view);
    const got = floats(dtype === 'f16' ? new Uint32Array(read[at]) : new Float32Array(read[at]));
    const want = floats(views[i]);
    const tolerance = kernel.name.startsWith('attention')
      ? {
          relative: 0,
          absolute: ATTENTION_TOLERANCE * want.reduce((most, value) => Math.max(most, Math.abs(value)), 0),
        }
      : TOLERANCE[dtype === 'f16' ? 'f16' : 'f32'];
    const wrong = want.findIndex((value, j) =>
      Number.isFinite(value)
        ? !(Math.abs(got[j] - value) <= tolerance.relative * Math.abs(value) + tolerance.absolute)
        : Number.isFinite(got[j]),
    );
    if (wrong >= 0) return `${kernel.name} ${variant.name} makes ${got[wrong]} of what is ${want[wrong]}`;
  }
  return null;
}
