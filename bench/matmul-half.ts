import { StudioError } from '../engine/errors.ts';
import { openAdapter } from '../engine/node/adapters.ts';
import { packHalves, unpackHalves } from '../engine/ops/half/half.ts';
import { onTensorCores } from '../engine/ops/half/on-tensor-cores.ts';
import { type Kernel, PARAMS_BYTES, type Params, tiledVariant, writeParams } from '../engine/ops/kernel.ts';
import { seededRandom } from '../engine/ops/kernel-case.ts';
import { type OpenDevice, openDevice } from '../engine/runtime/device.ts';
import { offersTensorCores } from '../engine/runtime/tensor-cores.ts';
import { GpuTime } from './gpu-time.ts';
import { errorWords, kernelOf, type Layout, productError } from './product-error.ts';

type Stored = 'f16' | 'f32';

/** [layout, M, N, K, a is stored as]: large ones, and the guide's model at 8 x 512 tokens; b is halves. */
const SHAPES: readonly (readonly [Layout, number, number, number, Stored])[] = [
  ['nt', 4096, 4096, 4096, 'f16'],
  ['nn', 4096, 4096, 4096, 'f16'],
  ['tn', 4096, 4096, 4096, 'f16'],
  ['nn', 4096, 4096, 4096, 'f32'],
  ['tn', 4096, 4096, 4096, 'f32'],
  ['nt', 4096, 1024, 1024, 'f16'],
  ['nt', 4096, 3072, 1024, 'f16'],
  ['nt', 4096, 4096, 1024, 'f16'],
  ['nt', 4096, 1024, 4096, 'f16'],
  ['nn', 4096, 1024, 1024, 'f32'],
  ['nn', 4096, 1024, 4096, 'f32'],
  ['nn', 4096, 4096, 1024, 'f32'],
  ['tn', 1024, 1024, 4096, 'f32'],
  ['tn', 3072, 1024, 4096, 'f32'],
  ['tn', 4096, 1024, 4096, 'f32'],
];
const RUNS = 12;
/** How long the device is kept busy before each variant is timed: its clock falls while the next one is compiled and checked. */
const WARM_MS = 1000;

/**
 * Products of halves on tensor cores: each variant that could run and, marked, the one that the engine takes, checked on
 * sampled elements, by the shortest of twelve runs on a busy device. Arguments: an adapter, and part of the shapes' names.
 */
export async function run(args: readonly string[]): Promise<void> {
  const { adapter, entry } = await openAdapter(args[0] ?? 'auto');
  if (!offersTensorCores(adapter))
    throw new StudioError('no-adapter', `${entry.name} offers no tensor cores. Run this on a GPU that has them.`);
  const open = await openDevice(adapter);
  const clock = new GpuTime(open.device);
  const random = seededRandom(1);
  for (const [layout, M, N, K, stored] of SHAPES) {
    const name = `${layout} ${M}x${N}x${K}, a in ${stored}`;
    if (args[1] && !name.includes(args[1])) continue;
    const [lda, ldb] = [layout === 'tn' ? M : K, layout === 'nt' ? K : N];
    const params: Params = { M, N, K, aOffset: 0, lda, bOffset: 0, ldb, cOffset: 0, ldc: N, accumulate: 0 };
    const kernel = onTensorCores(kernelOf[layout], stored === 'f16' ? ['a', 'b'] : ['b'], params);
    if (!kernel) throw new Error(`${name} has no variant`);
    const halves = (n: number) => packHalves(Float32Array.from({ length: n }, () => random() * 2 - 1));
    const [a, b] = [halves(M * K), halves(N * K)];
    const [aValues, bValues] = [unpackHalves(a), unpackHalves(b)];
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC;
    const buffers = [stored === 'f16' ? a : aValues, b].map((view) => {
      const buffer = open.device.createBuffer({ size: view.byteLength, usage });
      open.device.queue.writeBuffer(buffer, 0, view);
      return buffer;
    });
    buffers.push(open.device.createBuffer({ size: 4 * M * N, usage }));
    const taken = tiledVariant(kernel, params)?.name;
    for (const variant of kernel.tiled?.special ?? []) {
      const one: Kernel = { ...kernel, tiled: { ...variant, fits: () => true, special: undefined } };
      const ms = await timeOf(open, clock, one, params, buffers);
      const error = await productError(open, { layout, params, a: aValues, b: bValues }, buffers[2]);
      const rate = (2 * M * N * K) / ms / 1e9;
      console.log(
        `${name.padEnd(32)} ${String(variant.name).padEnd(26)} ${(1000 * ms).toFixed(0).padStart(6)} us ${rate.toFixed(1).padStart(6)} TFLOP/s  ` +
          `${errorWords(error)}${variant.name === taken ? '  taken' : ''}`,
      );
    }
    for (const buffer of buffers) buffer.destroy();
  }
  open.close();
}

async function timeOf(open: OpenDevice, clock: GpuTime, kernel: Kernel, params: Params, operands: GPUBuffer[]) {
  const { device, kernels, guard } = open;
  const pipeline = await guard(kernels.pipeline({ kernel, params, operands: [], tiled: true }));
  const uniform = device.createBuffer({ size: PARAMS_BYTES, usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST });
  const bytes = new ArrayBuffer(PARAMS_BYTES);
  writeParams(kernel, params, kernel.threads(params), new DataView(bytes), 0);
  device.queue.writeBuffer(uniform, 0, bytes);
  const entries = [...operands, uniform].map((buffer, binding) => ({ binding, resource: { buffer } }));
  const group = device.createBindGroup({ layout: kernels.groupLayout(operands.length), entries });
  const [x, y, z] = tiledVariant(kernel, params)!.workgroups(params);
  const once = () =>
    guard(
      clock.ofPass((pass) => {
        pass.setPipeline(pipeline);
        pass.setBindGroup(0, group);
        pass.dispatchWorkgroups(x, y, z);
      }),
    );
  for (const began = performance.now(); performance.now() - began < WARM_MS; ) await once();
  let best = Number.POSITIVE_INFINITY;
  for (let i = 0; i < RUNS; i++) best = Math.min(best, await once());
  uniform.destroy();
  return best;
}
