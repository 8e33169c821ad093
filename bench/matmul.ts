import { openAdapter } from '../engine/node/adapters.ts';
import {
  foldGrid,
  type Kernel,
  PARAMS_BYTES,
  type Params,
  type TiledVariant,
  tiledVariant,
  writeParams,
} from '../engine/ops/kernel.ts';
import { seededRandom } from '../engine/ops/kernel-case.ts';
import { type BlockShape, blockedVariant } from '../engine/ops/matmul/matmul-blocked.ts';
import { spreadRowsVariant } from '../engine/ops/matmul/matmul-few-rows-spread.ts';
import { streamVariant } from '../engine/ops/matmul/matmul-few-rows-stream.ts';
import { storeWgsl } from '../engine/ops/matmul/matmul-store.ts';
import { type OpenDevice, openDevice } from '../engine/runtime/device.ts';
import { floorMs } from './floor.ts';
import { GpuTime } from './gpu-time.ts';
import { errorWords, kernelOf, type Layout, productError } from './product-error.ts';

/** Weights (tn: results) that take turns, so that none is found in the cache: 16 MB each, 60 MB of cache. */
const COPIES = 8;
const CHAIN = 64;
/** Sums over parts of k, at most. */
const MOST_PARTS = 8;
/** How long the device is kept busy before anything is timed, and how often each variant is. */
const WARM_MS = 400;
const ROUNDS = 5;

/** [layout, M, N, K] of the guide's model at 35 tokens, and large ones. */
const SHAPES: readonly (readonly [Layout, number, number, number])[] = [
  ['nt', 35, 1024, 1024],
  ['nt', 35, 3072, 1024],
  ['nt', 35, 4096, 1024],
  ['nt', 35, 1024, 4096],
  ['nt', 35, 33_278, 1024],
  ['nn', 35, 1024, 1024],
  ['nn', 35, 1024, 3072],
  ['nn', 35, 1024, 4096],
  ['nn', 35, 4096, 1024],
  ['nn', 35, 1024, 33_278],
  ['tn', 1024, 1024, 35],
  ['tn', 4096, 1024, 35],
  ['tn', 33_278, 1024, 35],
  ['nt', 4096, 4096, 4096],
  ['nn', 4096, 4096, 4096],
  ['tn', 4096, 4096, 4096],
];

const block = (M: number, N: number, K: number, rows: number, columns: number): BlockShape => ({
  ...{ M, N, K, rows, columns },
  warps: K % 8 === 0,
  wholeC: true,
});

/** [row lanes, column lanes, rows, columns] */
const SPREAD: readonly (readonly [number, number, number, number])[] = [
  [4, 1, 9, 8],
  [4, 2, 9, 4],
  [4, 2, 9, 8],
  [4, 4, 9, 8],
];

/** [row lanes, column lanes, column warps, rows, columns, turns, ahead, parts] */
const STREAM: readonly (readonly [number, number, number, number, number, number, number, number])[] = [
  [2, 4, 1, 9, 4, 3, 3, 1],
  [4, 4, 1, 9, 4, 2, 4, 1],
  [2, 8, 1, 18, 4, 2, 4, 1],
  [2, 8, 1, 18, 4, 3, 3, 1],
  [2, 8, 2, 18, 4, 4, 4, 1],
  [2, 8, 1, 18, 4, 3, 3, 4],
  [2, 8, 2, 18, 4, 4, 4, 8],
];

interface Candidate extends TiledVariant {
  /** Sums over parts of k that a second dispatch adds. */
  readonly parts?: number;
}

function fewRowsCandidates(layout: 'nt' | 'nn', N: number): Candidate[] {
  const store = storeWgsl(false);
  const spread = SPREAD.map(([rowLanes, columnLanes, rows, columns]): Candidate => {
    const variant = spreadRowsVariant(layout, store, { rowLanes, columnLanes, rows, columns });
    return { ...variant, name: `${variant.name} ${rowLanes}x${columnLanes} of ${rows}x${columns}` };
  });
  const stream = STREAM.map(([rowLanes, columnLanes, columnWarps, rows, columns, turns, ahead, parts]): Candidate => {
    const shape = { threads: 256, rowLanes, columnLanes, columnWarps, rows, columns, turns, ahead, parts };
    const variant = streamVariant(layout, store, shape);
    return {
      ...variant,
      name: `${variant.name} ${rowLanes}x${columnLanes} of ${rows}x${columns} ahead ${ahead}`,
      parts,
    };
  });
  // The second dispatch adds whole vec4s.
  return [...spread, ...stream].filter(({ parts = 1 }) => parts === 1 || N % 4 === 0);
}

function candidates(layout: Layout, M: number, N: number, K: number): Candidate[] {
  if (layout !== 'tn' && M <= 64) return fewRowsCandidates(layout, N);
  if (K <= 64)
    return [
      block(64, 128, 36, 8, 4),
      block(64, 64, 36, 4, 4),
      block(128, 128, 36, 8, 8),
      block(64, 128, 12, 8, 4),
      block(32, 128, 36, 4, 4),
    ].map((shape) => blockedVariant(layout, false, shape));
  return [
    block(128, 128, 16, 8, 8),
    { ...block(128, 128, 16, 8, 8), wholeC: false },
    { ...block(128, 128, 16, 8, 8), warps: false },
    block(128, 128, 32, 8, 8),
    block(256, 128, 16, 16, 8),
    block(128, 256, 16, 8, 16),
    block(64, 128, 32, 4, 8),
  ].map((shape) => blockedVariant(layout, false, shape));
}

/**
 * Matmuls of the guide's model: each candidate variant and the one that the engine takes, checked on sampled elements, then
 * timed in a chain over weights that are not in the cache, beside the floor of the H200's profile.
 */
export async function run(args: readonly string[]): Promise<void> {
  const { adapter, entry } = await openAdapter(args[0] ?? 'auto');
  const open = await openDevice(adapter);
  const shrink = entry.software ? 16 : 1;
  const only = args[1];
  for (const [layout, ...full] of SHAPES) {
    if (only && !`${layout} ${full.join('x')}`.includes(only)) continue;
    const [M, N, K] = full.map((n) => (n <= 64 ? n : Math.ceil(n / shrink / 4) * 4 - (n === 33_278 ? 2 : 0)));
    const base = kernelOf[layout];
    const lda = Math.ceil((layout === 'tn' ? M : K) / 4) * 4;
    const ldb = layout === 'nt' ? K : N;
    const ldc = Math.ceil(N / 4) * 4;
    const params: Params = { M, N, K, aOffset: 0, lda, bOffset: 0, ldb, cOffset: 0, ldc, accumulate: 0 };
    const taken = tiledVariant(base, params);
    const own = taken ? [{ ...taken, name: `engine: ${taken.name ?? 'tiled'}` }] : [];
    const { flops, bytes } = base.cost(params);
    const floorUs = 1000 * floorMs({ flops, bytes });
    console.log(`${layout} ${M}x${N}x${K}  floor ${floorUs.toFixed(1)} us`);
    const data = makeData(open.device, layout, params);
    const chain = entry.software ? 1 : M === 4096 && K === 4096 ? 4 : CHAIN;
    const ready: Ready[] = [];
    for (const variant of [...own, ...candidates(layout, M, N, K)] as readonly Candidate[]) {
      if (!variant.fits(params)) continue;
      const kernel: Kernel = {
        ...base,
        name: `${layout} ${variant.name}`,
        tiled: { ...variant, fits: () => true, special: [] },
      };
      try {
        ready.push(await prepare(open, kernel, params, data, chain, variant.parts ?? 1));
      } catch (cause) {
        console.log(`  ${kernel.name.padEnd(36)} ${(cause as Error).message.slice(0, 100)}`);
      }
    }
    const best = await timeInTurns(ready, entry.software ? 0 : WARM_MS);
    for (const [i, { name, error }] of ready.entries()) {
      const us = best[i];
      const rate = `${(flops / us / 1e6).toFixed(1).padStart(6)} TFLOP/s ${(bytes / us / 1e3).toFixed(0).padStart(6)} GB/s`;
      console.log(
        `  ${name.padEnd(36)} ${us.toFixed(1).padStart(8)} us ${rate}  ${((100 * floorUs) / us).toFixed(0)} %  ${errorWords(error)}`,
      );
    }
    for (const buffer of [...data.b, ...data.c, data.a]) buffer.destroy();
  }
  open.close();
}

interface Data {
  readonly layout: Layout;
  readonly a: GPUBuffer;
  readonly b: readonly GPUBuffer[];
  readonly c: readonly GPUBuffer[];
  readonly values: readonly [Float32Array<ArrayBuffer>, Float32Array<ArrayBuffer>];
}

function makeData(device: GPUDevice, layout: Layout, { M, N, K, lda, ldb, ldc }: Params): Data {
  const random = seededRandom(1);
  const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC;
  const filled = (elements: number) => {
    const values = Float32Array.from({ length: elements }, () => random() * 2 - 1);
    const buffer = device.createBuffer({ size: elements * 4, usage });
    device.queue.writeBuffer(buffer, 0, values);
    return { values, buffer };
  };
  const a = filled((layout === 'tn' ? K : M) * lda);
  const b = filled((layout === 'nt' ? N : K) * ldb);
  const copies = layout === 'tn' ? 1 : M === 4096 ? 1 : COPIES;
  const encoder = device.createCommandEncoder();
  const others = Array.from({ length: copies - 1 }, () => {
    const copy = device.createBuffer({ size: b.buffer.size, usage });
    encoder.copyBufferToBuffer(b.buffer, 0, copy, 0, copy.size);
    return copy;
  });
  device.queue.submit([encoder.finish()]);
  const parts = M <= 64 ? MOST_PARTS : 1;
  const c = Array.from({ length: layout === 'tn' ? COPIES : 2 }, () =>
    device.createBuffer({ size: parts * M * ldc * 4, usage }),
  );
  return { layout, a: a.buffer, b: [b.buffer, ...others], c, values: [a.values, b.values] };
}

/** A variant that is compiled and was found right, or by how much it is wrong. */
interface Ready {
  readonly name: string;
  readonly error: number;
  /** Microseconds of one dispatch in a chain. */
  once(): Promise<number>;
}

async function prepare(
  open: OpenDevice,
  kernel: Kernel,
  params: Params,
  data: Data,
  chain: number,
  parts: number,
): Promise<Ready> {
  const { device, kernels, guard } = open;
  const pipeline = await guard(kernels.pipeline({ kernel, params, operands: [], tiled: true }));
  const uniform = device.createBuffer({ size: PARAMS_BYTES, usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST });
  const bytes = new ArrayBuffer(PARAMS_BYTES);
  writeParams(kernel, params, kernel.threads(params), new DataView(bytes), 0);
  device.queue.writeBuffer(uniform, 0, bytes);
  const groups = Array.from({ length: COPIES }, (_, i) =>
    device.createBindGroup({
      layout: kernels.groupLayout(3),
      entries: [data.a, data.b[i % data.b.length], data.c[i % data.c.length], uniform].map((buffer, binding) => ({
        binding,
        resource: { buffer },
      })),
    }),
  );
  const added = parts > 1 ? await partsAdder(open, params, data, parts) : null;
  const grid = tiledVariant(kernel, params)?.workgroups(params) ?? [...foldGrid(kernel.threads(params)), 1];
  const clock = new GpuTime(device);
  const once = async () => {
    const ms = await guard(
      clock.ofPass((pass) => {
        pass.setPipeline(pipeline);
        for (let i = 0; i < chain; i++) {
          pass.setBindGroup(0, groups[i % COPIES]);
          pass.dispatchWorkgroups(...(grid as [number, number, number]));
          added?.(pass, i % data.c.length);
          if (added) pass.setPipeline(pipeline);
        }
      }),
    );
    return (1000 * ms) / chain;
  };
  const encoder = device.createCommandEncoder();
  encoder.clearBuffer(data.c[0]);
  device.queue.submit([encoder.finish()]);
  await once();
  const [a, b] = data.values;
  const error = await productError(open, { layout: data.layout, params, a, b }, data.c[0]);
  return { name: kernel.name, error, once };
}

/**
 * The least time of each, in turns, after the device has been kept busy for `warmMs`: its clock falls while it idles (an H200's
 * from 1,980 to 345 MHz), as it does while a variant is compiled.
 */
async function timeInTurns(ready: readonly Ready[], warmMs: number): Promise<number[]> {
  const best = ready.map(() => Number.POSITIVE_INFINITY);
  for (const began = performance.now(); performance.now() - began < warmMs; )
    for (const { once } of ready) await once();
  for (let round = 0; round < ROUNDS; round++)
    for (const [i, { once }] of ready.entries()) best[i] = Math.min(best[i], await once());
  return best;
}

/** Adds the parts of c where they lie: the second dispatch of a product whose sum over k is split. */
async function partsAdder({ device, guard }: OpenDevice, { M, N }: Params, data: Data, parts: number) {
  const code = `
@group(0) @binding(0) var<storage, read_write> c: array<vec4f>;
@compute @workgroup_size(128)
fn main(@builtin(global_invocation_id) id: vec3u) {
  if (id.x >= ${(M * N) >> 2}u) { return; }
  var sum = c[id.x];
  ${Array.from({ length: parts - 1 }, (_, i) => `sum += c[id.x + ${((i + 1) * M * N) >> 2}u];`).join(' ')}
  c[id.x] = sum;
}`;
  const module = device.createShaderModule({ code });
  const pipeline = await guard(device.createComputePipelineAsync({ layout: 'auto', compute: { module } }));
  const groups = data.c.map((buffer) =>
    device.createBindGroup({
      layout: pipeline.getBindGroupLayout(0),
      entries: [{ binding: 0, resource: { buffer } }],
    }),
  );
  return (pass: GPUComputePassEncoder, i: number) => {
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, groups[i]);
    pass.dispatchWorkgroups(Math.ceil((M * N) / 4 / 128));
  };
}
