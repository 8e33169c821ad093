import type { Kernel, Params } from '../engine/ops/kernel.ts';
import { tiledVariant } from '../engine/ops/kernel.ts';
import type { OpenDevice } from '../engine/runtime/device.ts';
import { BenchDevice } from './bench-device.ts';
import { randomValues, readyDispatch, withVariant } from './dispatch.ts';
import { floorMs, ratioTo } from './floor.ts';
import { type Candidate, candidates } from './matmul-candidates.ts';
import { guideTable } from './matmul-guide.ts';
import {
  GUIDE_SHAPES,
  LARGE_SHAPES,
  leastCost,
  type ProductShape,
  productParams,
  shapeName,
  shrunk,
} from './matmul-shapes.ts';
import { timesOf } from './measure.ts';
import { errorWords, kernelOf, type Layout, productError } from './product-error.ts';
import { measureRates } from './rates.ts';
import { askBeside, type TorchParts, torchBeside } from './torch-parts.ts';

/** Weights (tn: results) that take turns, so that none is found in the cache: 16 MB each, 60 MB of cache. */
const COPIES = 8;
const CHAIN = 64;
/** Sums over parts of k, at most. */
const MOST_PARTS = 8;
const ROUNDS = 5;
/** Where a's numbers begin among those of b. */
const A_FROM = 4099;

/**
 * Products of the guide's model and large ones, beside their floor by this device's measured rates and torch. Arguments: an
 * adapter (auto), and `guide`, the products of few rows as a step has them, or a part of the shapes' names (all): each
 * candidate variant and the one that the engine takes, checked on sampled elements, in a chain over weights that are not in
 * the cache.
 */
export async function run(args: readonly string[]): Promise<void> {
  const device = await BenchDevice.open(args[0] ?? 'auto');
  const torch = await torchBeside({ gpu: !device.software });
  const rates = await measureRates(device, torch);
  const only = args[1] ?? '';
  if (only === 'guide') await guideTable(device, rates, torch);
  else
    for (const full of [...GUIDE_SHAPES, ...LARGE_SHAPES].filter((shape) => shapeName(shape).includes(only))) {
      const shape = device.software ? shrunk(full) : full;
      const floorUs = 1000 * floorMs(leastCost(shape), rates);
      console.log(`${shapeName(shape)}  floor ${floorUs.toFixed(1)} us`);
      await candidatesTable(device, shape, floorUs, torch);
    }
  torch?.close();
  device.close();
}

/** Each candidate's median of a dispatch, and torch's, in turns. */
async function candidatesTable(
  device: BenchDevice,
  shape: ProductShape,
  floorUs: number,
  torch: TorchParts | null,
): Promise<void> {
  const [layout, M, N, K] = shape;
  const params = productParams(shape);
  const base = kernelOf[layout];
  const taken = tiledVariant(base, params);
  const own = taken ? [{ ...taken, name: `engine: ${taken.name ?? 'tiled'}` }] : [];
  const { flops, bytes } = base.cost(params);
  const data = makeData(device.open.device, layout, params);
  const chain = device.software ? 1 : M === 4096 && K === 4096 ? 4 : CHAIN;
  const ready: Ready[] = [];
  for (const variant of [...own, ...candidates(layout, M, N, K)] as readonly Candidate[]) {
    if (!variant.fits(params)) continue;
    const kernel: Kernel = { ...withVariant(base, variant), name: `${layout} ${variant.name}` };
    try {
      ready.push(await prepare(device, kernel, params, data, chain, variant.parts ?? 1));
    } catch (cause) {
      console.log(`  ${kernel.name.padEnd(36)} ${(cause as Error).message.slice(0, 100)}`);
    }
  }
  const product = { layout, M, N, K, dtype: 'float32', bias: false, copies: data.copies, chain };
  const theirs: number[] = [];
  const times = ready.map((): number[] => []);
  await device.warm(async () => {
    for (const { once } of ready) await once();
  });
  for (let round = 0; round < (device.software ? 1 : ROUNDS); round++) {
    for (const [i, { once }] of ready.entries()) times[i].push(await once());
    theirs.push(...((await askBeside(torch, { ask: 'matmul', ...product }))?.ms ?? []));
  }
  const torchUs = theirs.length ? 1000 * timesOf(theirs).medianMs : null;
  const row = (name: string, us: number, words: string) =>
    `  ${name.padEnd(36)} ${us.toFixed(1).padStart(8)} us ${(flops / us / 1e6).toPrecision(3).padStart(8)} TFLOP/s ` +
    `${(bytes / us / 1e3).toFixed(0).padStart(6)} GB/s ${((100 * floorUs) / us).toFixed(0).padStart(4)} %  ${words}`;
  for (const [i, { name, error }] of ready.entries()) {
    const us = timesOf(times[i]).medianMs;
    console.log(row(name, us, `${ratioTo(torchUs, us)}  ${errorWords(error)}`));
  }
  if (torchUs !== null) console.log(row('torch', torchUs, ''));
  await torch?.forget();
  for (const buffer of [...data.b, ...data.c, data.a]) buffer.destroy();
}

interface Data {
  readonly layout: Layout;
  readonly a: GPUBuffer;
  readonly b: readonly GPUBuffer[];
  readonly c: readonly GPUBuffer[];
  /** Of b, or for tn of c. */
  readonly copies: number;
  readonly values: readonly [Float32Array<ArrayBuffer>, Float32Array<ArrayBuffer>];
}

function makeData(device: GPUDevice, layout: Layout, { M, N, K, lda, ldb, ldc }: Params): Data {
  const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC;
  const filled = (elements: number, from: number) => {
    const values = randomValues(elements, from);
    const buffer = device.createBuffer({ size: elements * 4, usage });
    device.queue.writeBuffer(buffer, 0, values);
    return { values, buffer };
  };
  const a = filled((layout === 'tn' ? K : M) * lda, A_FROM);
  const b = filled((layout === 'nt' ? N : K) * ldb, 0);
  const weights = layout === 'tn' || M === 4096 ? 1 : COPIES;
  const encoder = device.createCommandEncoder();
  const others = Array.from({ length: weights - 1 }, () => {
    const copy = device.createBuffer({ size: b.buffer.size, usage });
    encoder.copyBufferToBuffer(b.buffer, 0, copy, 0, copy.size);
    return copy;
  });
  device.queue.submit([encoder.finish()]);
  const parts = M <= 64 ? MOST_PARTS : 1;
  const c = Array.from({ length: layout === 'tn' ? COPIES : 2 }, () =>
    device.createBuffer({ size: parts * M * ldc * 4, usage }),
  );
  const all = [b.buffer, ...others];
  return { layout, copies: layout === 'tn' ? c.length : weights, a: a.buffer, b: all, c, values: [a.values, b.values] };
}

/** A variant that is compiled and was found right, or by how much it is wrong. */
interface Ready {
  readonly name: string;
  readonly error: number;
  /** Microseconds of one dispatch in a chain. */
  once(): Promise<number>;
}

async function prepare(
  device: BenchDevice,
  kernel: Kernel,
  params: Params,
  data: Data,
  chain: number,
  parts: number,
): Promise<Ready> {
  const { open } = device;
  const turns = Array.from({ length: COPIES }, (_, i) => [
    data.a,
    data.b[i % data.b.length],
    data.c[i % data.c.length],
  ]);
  const product = await readyDispatch(open, kernel, params, turns);
  const added = parts > 1 ? await partsAdder(open, params, data, parts) : null;
  const once = async () => {
    const ms = await device.msOf((pass, turn = 0) => {
      product(pass, turn);
      added?.(pass, turn % data.c.length);
    }, chain);
    return 1000 * ms;
  };
  const encoder = open.device.createCommandEncoder();
  encoder.clearBuffer(data.c[0]);
  open.device.queue.submit([encoder.finish()]);
  await once();
  const [a, b] = data.values;
  const error = await productError(open, { layout: data.layout, params, a, b }, data.c[0]);
  return { name: kernel.name, error, once };
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
