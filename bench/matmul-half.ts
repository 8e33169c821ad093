import { StudioError } from '../engine/errors.ts';
import { packHalves, unpackHalves } from '../engine/ops/half/half.ts';
import { onTensorCores } from '../engine/ops/half/on-tensor-cores.ts';
import { type Params, tiledVariant } from '../engine/ops/kernel.ts';
import { offersTensorCores } from '../engine/runtime/tensor-cores.ts';
import { BenchDevice } from './bench-device.ts';
import { type Encode, randomValues, readyDispatch, withVariant } from './dispatch.ts';
import type { Rates } from './floor.ts';
import { type HalfRow, halfHeader, halfLine } from './matmul-half-table.ts';
import { type ProductShape, productParams, shapeName } from './matmul-shapes.ts';
import { timesOf } from './measure.ts';
import { errorWords, kernelOf, productError } from './product-error.ts';
import { measureRates } from './rates.ts';
import { askBeside, type TorchParts, torchBeside } from './torch-parts.ts';

type Stored = 'f16' | 'f32';

/** [the shape, how a is stored]: large ones, and the guide's model at 8 x 512 tokens; b is halves. */
const SHAPES: readonly (readonly [ProductShape, Stored])[] = [
  [['nt', 4096, 4096, 4096], 'f16'],
  [['nn', 4096, 4096, 4096], 'f16'],
  [['tn', 4096, 4096, 4096], 'f16'],
  [['nn', 4096, 4096, 4096], 'f32'],
  [['tn', 4096, 4096, 4096], 'f32'],
  [['nt', 4096, 1024, 1024], 'f16'],
  [['nt', 4096, 3072, 1024], 'f16'],
  [['nt', 4096, 4096, 1024], 'f16'],
  [['nt', 4096, 1024, 4096], 'f16'],
  [['nn', 4096, 1024, 1024], 'f32'],
  [['nn', 4096, 1024, 4096], 'f32'],
  [['nn', 4096, 4096, 1024], 'f32'],
  [['tn', 1024, 1024, 4096], 'f32'],
  [['tn', 3072, 1024, 4096], 'f32'],
  [['tn', 4096, 1024, 4096], 'f32'],
];
const LARGEST = 4096 * 4096;
/** Where a's numbers begin among those of b. */
const A_FROM = 8198;
const ROUNDS = 7;
/** Products of a pass. */
const CHAIN = 4;
/** What is checked on the host lets the clock fall far. */
const WARM_MS = 1000;

/**
 * Products of halves on tensor cores, with results in float32 and, as torch's are, in halves: each variant that could run
 * and, marked, the one that the engine takes, checked on sampled elements; medians of seven rounds in turns with torch's.
 * Arguments: an adapter, and a part of the shapes' names.
 */
export async function run(args: readonly string[]): Promise<void> {
  const device = await BenchDevice.open(args[0] ?? 'auto');
  if (!offersTensorCores(device.adapter))
    throw new StudioError(
      'no-adapter',
      `${device.entry.name} offers no tensor cores. Run this on a GPU that has them.`,
    );
  const torch = await torchBeside({ gpu: true });
  const rates = await measureRates(device, torch);
  console.log(halfHeader());
  for (const [shape, stored] of SHAPES)
    if (`${shapeName(shape)}, a in ${stored}`.includes(args[1] ?? ''))
      for (const row of await measureShape(device, shape, stored, rates, torch)) console.log(halfLine(row));
  torch?.close();
  device.close();
}

interface Candidate {
  readonly variant: string;
  readonly result: Stored;
  readonly taken: boolean;
  readonly encode: Encode;
  readonly error: number;
  readonly ms: number[];
}

async function measureShape(
  device: BenchDevice,
  shape: ProductShape,
  stored: Stored,
  rates: Rates,
  torch: TorchParts | null,
): Promise<HalfRow[]> {
  const [layout, M, N, K] = shape;
  const data = makeOperands(device.open.device, shape, stored);
  const candidates: Candidate[] = [];
  for (const result of ['f32', 'f16'] as const)
    candidates.push(...(await prepare(device, shape, stored, result, data)));
  // Torch multiplies halves alone.
  const asked = stored === 'f16' ? torch : null;
  const theirs: number[] = [];
  await device.warm(async () => {
    for (const { encode } of candidates) await device.msOf(encode);
  }, WARM_MS);
  for (let round = 0; round < ROUNDS; round++) {
    const product = { layout, M, N, K, dtype: 'float16', bias: false, copies: 1, chain: CHAIN };
    theirs.push(...((await askBeside(asked, { ask: 'matmul', ...product }))?.ms ?? []));
    // The clock has fallen while torch was asked.
    await device.msOf(candidates[0].encode, CHAIN);
    for (const { encode, ms } of candidates) ms.push(await device.msOf(encode, CHAIN));
  }
  await torch?.forget();
  for (const buffer of Object.values(data.buffers)) buffer.destroy();
  const torchMs = theirs.length ? timesOf(theirs).medianMs : null;
  const floorMs = (1000 * 2 * M * N * K) / (rates.halfFlopsPerSecond ?? rates.flopsPerSecond);
  const names = [...new Set(candidates.map(({ variant }) => variant))];
  return names.map((variant) => {
    const of = (result: Stored) => candidates.find((each) => each.variant === variant && each.result === result);
    const [f32, f16] = [of('f32'), of('f16')];
    return {
      name: `${shapeName(shape)}, a in ${stored}`,
      variant: `${variant}${(f16 ?? f32)?.taken ? ' *' : ''}`,
      flops: 2 * M * N * K,
      floorMs,
      f32Ms: f32 ? timesOf(f32.ms).medianMs : null,
      f16Ms: f16 ? timesOf(f16.ms).medianMs : null,
      torchMs,
      words: [f32, f16].flatMap((each) => (each ? [errorWords(each.error, each.result)] : [])).join(', '),
    };
  });
}

interface Operands {
  readonly params: Params;
  readonly a: Float32Array;
  readonly b: Float32Array;
  readonly buffers: Readonly<Record<'a' | 'b' | 'f32' | 'f16', GPUBuffer>>;
}

let halvesPool: Uint32Array<ArrayBuffer> | null = null;

/** A part of one list, as `randomValues`. */
function randomHalves(count: number, from = 0): Uint32Array<ArrayBuffer> {
  halvesPool ??= packHalves(randomValues(LARGEST + A_FROM));
  return halvesPool.subarray(from / 2, (from + count) / 2);
}

function makeOperands(device: GPUDevice, shape: ProductShape, stored: Stored): Operands {
  const [, M, N, K] = shape;
  const [aHalves, bHalves] = [randomHalves(M * K, A_FROM), randomHalves(N * K)];
  const [a, b] = [unpackHalves(aHalves), unpackHalves(bHalves)];
  const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC;
  const empty = (size: number) => device.createBuffer({ size, usage });
  const upload = (view: Uint32Array<ArrayBuffer> | Float32Array<ArrayBuffer>) => {
    const buffer = empty(view.byteLength);
    device.queue.writeBuffer(buffer, 0, view);
    return buffer;
  };
  const buffers = {
    a: upload(stored === 'f16' ? aHalves : a),
    b: upload(bHalves),
    f32: empty(4 * M * N),
    f16: empty(2 * M * N),
  };
  return { params: productParams(shape), a, b, buffers };
}

/** Every variant of this product whose results are stored so, run once and checked. */
async function prepare(
  device: BenchDevice,
  [layout]: ProductShape,
  stored: Stored,
  result: Stored,
  { params, a, b, buffers }: Operands,
): Promise<Candidate[]> {
  const halves = [...(stored === 'f16' ? ['a'] : []), 'b', ...(result === 'f16' ? ['c'] : [])];
  const kernel = onTensorCores(kernelOf[layout], halves, params);
  const taken = kernel && tiledVariant(kernel, params)?.name;
  const found: Candidate[] = [];
  for (const variant of kernel?.tiled?.special ?? []) {
    const c = buffers[result];
    const encode = await readyDispatch(device.open, withVariant(kernel!, variant), params, [[buffers.a, buffers.b, c]]);
    await device.msOf(encode);
    const error = await productError(device.open, { layout, params, a, b }, c, result);
    const name = String(variant.name);
    found.push({ variant: name, result, taken: name === taken, encode, error, ms: [] });
  }
  return found;
}
