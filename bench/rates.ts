import { copy } from '../engine/ops/copy/copy.ts';
import { type Call, Graph } from '../engine/ops/graph.ts';
import { onTensorCores } from '../engine/ops/half/on-tensor-cores.ts';
import type { Kernel } from '../engine/ops/kernel.ts';
import { offersTensorCores } from '../engine/runtime/tensor-cores.ts';
import type { BenchDevice } from './bench-device.ts';
import { RandomBuffers } from './dispatch.ts';
import { highest, type Rates, type Sighting, sightingLine } from './floor.ts';
import { kernelOf, LAYOUTS } from './product-error.ts';
import { askBeside, type TorchParts } from './torch-parts.ts';

/** Before the first figure. */
const WARM_MS = 1000;
const ROUNDS = 5;
/** Commands of a submit. */
const COPIES = 8;
const MiB = 2 ** 20;
/** [copied bytes, rows and columns of a product] */
const SIZES = { gpu: [1024 * MiB, 4096], software: [64 * MiB, 256] } as const;

const THREADS = 256;
const GROUPS = 2048;
/** Numbers are read 16 bytes at a time, four under way a thread. */
const sweep = (body: (at: readonly string[]) => string, rest = ''): string => `
fn tile(group: vec3u, local: vec3u, index: u32) {
  let total = p.n / 4u;
  var sum = vec4f();
  for (var i = group.x * ${THREADS}u + index; i + ${3 * THREADS * GROUPS}u < total; i += ${4 * THREADS * GROUPS}u) {
    ${body([0, 1, 2, 3].map((turn) => `i + ${turn * THREADS * GROUPS}u`))}
  }
  ${rest}
}`;
const swept = (name: string, bytes: number, wgsl: string): Kernel => ({
  ...copy,
  name,
  cost: ({ n }) => ({ flops: 0, bytes: bytes * n }),
  tiled: {
    vectors: ['x', 'out'],
    workgroupSize: [THREADS, 1, 1],
    workgroups: () => [GROUPS, 1, 1],
    wgsl,
    fits: ({ n }) => n % (16 * THREADS * GROUPS) === 0,
  },
});
const STREAMS: readonly Kernel[] = [
  swept(
    'copy',
    8,
    sweep((at) => {
      const values = at.map((each, i) => `let v${i} = x[${each}];`);
      return [...values, ...at.map((each, i) => `out[${each}] = v${i};`)].join(' ');
    }),
  ),
  swept(
    'read',
    4,
    sweep((at) => `sum += ${at.map((each) => `x[${each}]`).join(' + ')};`, 'if (sum.x == 1.5) { out[index] = sum; }'),
  ),
];

/**
 * What this device does at best, ours and torch's: bytes of a large copy and of a large read, float32 products and, where there
 * are tensor cores, products of halves; the quickest of five in each layout. Prints what it found.
 */
export async function measureRates(device: BenchDevice, torch: TorchParts | null): Promise<Rates> {
  const meter = new RateMeter(device, torch);
  const bytes = await meter.streams();
  const floats = await meter.products('float32');
  const halves = offersTensorCores(device.adapter) ? await meter.products('float16') : [];
  await torch?.forget();
  console.log(
    `${device.entry.name}, at best of ${ROUNDS}${device.software ? '' : ` after ${WARM_MS / 1000} s of work`}, on the device's clock:`,
  );
  console.log(sightingLine('memory', bytes, 'B/s'));
  console.log(sightingLine('float32', floats, 'FLOP/s'));
  if (halves.length) console.log(sightingLine('halves', halves, 'FLOP/s'));
  return {
    bytesPerSecond: highest(bytes),
    flopsPerSecond: highest(floats),
    halfFlopsPerSecond: halves.length ? highest(halves) : null,
  };
}

class RateMeter {
  private warmed = false;

  constructor(
    private readonly device: BenchDevice,
    private readonly torch: TorchParts | null,
  ) {}

  async streams(): Promise<Sighting[]> {
    const [bytes] = this.sizes;
    const found: Sighting[] = [];
    // Without tiled variants a read would be a copy.
    for (const kernel of this.device.software ? [copy] : STREAMS) {
      const g = new Graph();
      const n = bytes / 4;
      const operands = ['x', 'out'].map((name) => g.workspace(name, [n]));
      const { ms } = await this.quickest(kernel, operands, { n });
      found.push({ how: kernel.name, perSecond: (1000 * kernel.cost({ n }).bytes) / ms });
    }
    found.push({ how: 'copy commands', perSecond: (2000 * bytes) / (await this.copyCommandMs(bytes)) });
    const theirs = await askBeside(this.torch, { ask: 'copy', bytes, rounds: ROUNDS });
    if (theirs) found.push({ how: "torch's copy", perSecond: (2000 * bytes) / Math.min(...theirs.ms) });
    return found;
  }

  async products(dtype: 'float32' | 'float16'): Promise<Sighting[]> {
    const [, size] = this.sizes;
    const strides = { aOffset: 0, lda: size, bOffset: 0, ldb: size, cOffset: 0, ldc: size, accumulate: 0 };
    const params = { M: size, N: size, K: size, ...strides };
    const flops = 2 * size ** 3;
    const half = dtype === 'float16';
    const found: Sighting[] = [];
    for (const layout of LAYOUTS) {
      const kernel = half ? onTensorCores(kernelOf[layout], ['a', 'b', 'c'], params) : kernelOf[layout];
      if (!kernel) continue;
      const g = new Graph();
      const operands = ['a', 'b', 'c'].map((name) => g.workspace(name, [size, size], half ? 'f16' : 'f32'));
      const chain = this.device.software ? 1 : 4;
      const product = { layout, M: size, N: size, K: size, dtype, bias: false, copies: 1, chain };
      const { ms, torchMs } = await this.quickest(kernel, operands, params, { ask: 'matmul', ...product });
      found.push({ how: layout, perSecond: (1000 * flops) / ms });
      if (torchMs !== null) found.push({ how: `torch's ${layout}`, perSecond: (1000 * flops) / torchMs });
    }
    return found;
  }

  /** Milliseconds of a copy without a kernel, from the first of several to their end. */
  private async copyCommandMs(bytes: number): Promise<number> {
    const { device, guard } = this.device.open;
    const buffers = new RandomBuffers(device);
    const [from, to] = [buffers.make(bytes), buffers.make(bytes)];
    const several = async () => {
      const began = performance.now();
      const encoder = device.createCommandEncoder();
      for (let i = 0; i < COPIES; i++) encoder.copyBufferToBuffer(from, 0, to, 0, bytes);
      device.queue.submit([encoder.finish()]);
      await guard(device.queue.onSubmittedWorkDone());
      return (performance.now() - began) / COPIES;
    };
    await this.device.warm(several);
    let ms = Number.POSITIVE_INFINITY;
    for (let round = 0; round < ROUNDS; round++) ms = Math.min(ms, await several());
    buffers.destroy();
    return ms;
  }

  private get sizes(): readonly [number, number] {
    return SIZES[this.device.software ? 'software' : 'gpu'];
  }

  /** Ours and torch's in turns: all of torch's at once would draw so much that a GPU slows down. */
  private async quickest(
    kernel: Kernel,
    operands: Call['operands'],
    params: Call['params'],
    question: { readonly ask: string; readonly [more: string]: unknown } | null = null,
  ): Promise<{ readonly ms: number; readonly torchMs: number | null }> {
    const call: Call = { kernel, operands, params, module: '', phase: 'forward', microBatch: 0 };
    const { encode, destroy } = await this.device.readyCalls([call]);
    const times = await this.device.timesOf(encode);
    await this.device.warm(() => this.device.msOf(encode, times), this.warmed ? undefined : WARM_MS);
    this.warmed = true;
    const [own, theirs]: [number[], number[]] = [[], []];
    for (let round = 0; round < ROUNDS; round++) {
      if (question) theirs.push(...((await askBeside(this.torch, question))?.ms ?? []));
      own.push(await this.device.msOf(encode, times));
    }
    destroy();
    return { ms: Math.min(...own), torchMs: theirs.length ? Math.min(...theirs) : null };
  }
}
