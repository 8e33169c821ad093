import { attention } from '../ops/attention/attention.ts';
import { attentionGrad } from '../ops/attention/attention-grad.ts';
import { attentionGradKV } from '../ops/attention/attention-grad-kv.ts';
import { attentionGradQ } from '../ops/attention/attention-grad-q.ts';
import { CONTROL_ELEMENTS } from '../ops/control.ts';
import { fill } from '../ops/fill/fill.ts';
import { attentionOnTensorCores } from '../ops/half/attention-on-tensor-cores.ts';
import { packHalves } from '../ops/half/half.ts';
import { onTensorCores } from '../ops/half/on-tensor-cores.ts';
import { withHalves } from '../ops/half/with-halves.ts';
import { type Cost, type DType, dtypeBytes, type Kernel, type Params, runsAs } from '../ops/kernel.ts';
import { seededRandom } from '../ops/kernel-case.ts';
import { layerNormGrad } from '../ops/layer-norm/layer-norm-grad.ts';
import { layerNormResidual } from '../ops/layer-norm/layer-norm-residual.ts';
import { matmulNN, matmulNT, matmulTN } from '../ops/matmul/matmul.ts';
import { adam } from '../ops/optimizer/adam.ts';
import { reluGrad } from '../ops/relu-grad/relu-grad.ts';
import type { OpenDevice } from '../runtime/device.ts';
import { encodeFree, type FreeDispatch, freeDispatch } from '../runtime/free-dispatch.ts';
import { readMapped } from '../runtime/staging.ts';
import type { AdapterRates, KernelRate } from '../schedule/rates.ts';

/** For about how long the device is kept busy for each figure; all of them are within a few seconds. */
const MEASURE_MS = 12;
const ROUNDS = 3;
/** The same where arithmetic is the bound: a GPU that is near its limit of power lowers its clock after some time. */
const SUSTAINED_MS = 150;
/** Bytes of random values that operands repeat: zeros take less power, and so less time, and memory may keep them packed. */
const NOISE_BYTES = 2 ** 20;
/** A GPU that had nothing to do runs at a fifth of its clock for a while. */
const WARM_MS = 300;
const SUBMITS = 12;
/**
 * Dispatches that the host encodes, each with bindings of its own, as many as of a step; and how many of them are in a small
 * and in a large submit, from which its time for either is told.
 */
const [ENCODED, FEW_DISPATCHES, MANY_DISPATCHES] = [960, 4, 24];
/** Weights take turns, so that none is found in a cache. */
const COLD_BYTES = 128 * 2 ** 20;
const ADAM: Params = {
  offset: 0,
  lr: 1e-3,
  beta1: 0.9,
  beta2: 0.999,
  oneMinusBeta1: 0.1,
  oneMinusBeta2: 0.001,
  eps: 1e-8,
  weightDecay: 0,
  decoupled: 0,
  clipValue: 0,
};
/** Elements of an attention head. */
const HEAD_WIDTH = 16;
/** What is measured on: rows of a batch of one sequence and of several, and the widths of a layer. */
const SIZES = {
  gpu: { few: 35, many: 4096, tokens: 512, width: 1024, hidden: 4096, heads: 64, elements: 16 * 2 ** 20 },
  software: { few: 16, many: 128, tokens: 32, width: 64, hidden: 256, heads: 4, elements: 2 ** 18 },
} as const;

/** What of an adapter's rates is of kernels. */
export type KernelRates = Omit<AdapterRates, 'copies'>;

/**
 * The rates of a device's kernels as the engine uses them: each class at a small and a large size, in the variants that
 * training would take; what they take more in turns, as in a step, than each by itself; and the host's part.
 */
export async function measureKernels(open: OpenDevice, software: boolean, tensorCores: boolean): Promise<KernelRates> {
  const bench = new RateBench(open, software, tensorCores);
  try {
    if (!software) await bench.warm();
    return {
      kernels: await bench.kernels(),
      switchSeconds: await bench.switching(),
      submitGapSeconds: await bench.submitGap(),
      ...(await bench.encoding()),
    };
  } finally {
    bench.close();
  }
}

/** Dispatches that stand for a class at one size, with what they come to and take. */
interface Sample extends Cost {
  readonly seconds: number;
}

interface Ready extends FreeDispatch {
  readonly cost: Cost;
}

type Layout = 'nt' | 'nn' | 'tn';
type ProductKind = 'float32' | 'halves' | 'tensor cores';
const LAYOUTS: Readonly<Record<Layout, Kernel>> = { nt: matmulNT, nn: matmulNN, tn: matmulTN };
/** The same of 16-mixed: weights and activations are halves, gradients float32. */
const HALVES: Readonly<Record<Layout, readonly string[]>> = { nt: ['a', 'b'], nn: ['b'], tn: ['b'] };

class RateBench {
  private readonly buffers: GPUBuffer[] = [];
  private readonly clock: DeviceClock;
  private readonly noise = new Map<DType, GPUBuffer>();

  constructor(
    private readonly open: OpenDevice,
    private readonly software: boolean,
    private readonly tensorCores: boolean,
  ) {
    this.clock = new DeviceClock(open);
  }

  async kernels(): Promise<AdapterRates['kernels']> {
    const { few, many, tokens, width, hidden, heads, elements } = SIZES[this.software ? 'software' : 'gpu'];
    const elementwise = await this.rate('bytes', this.relu(few * width), this.adam(elements), 1e12);
    const { bytesPerSecond } = elementwise;
    const matmul = (rows: number, out: number, of: ProductKind = 'float32') =>
      (['nt', 'nn', 'tn'] as const).flatMap((layout) => this.matmul(layout, of, rows, out, width));
    const compute = (small: Promise<Ready>[], large: Promise<Ready>[]) =>
      this.rate('flops', small, large, bytesPerSecond);
    const products = await compute(matmul(many, width), matmul(many, hidden));
    const { flopsPerSecond } = products;
    const halves = (of: ProductKind) => compute(matmul(many, width, of), matmul(many, hidden, of));
    const halved = await halves('halves');
    const sequences = many / tokens;
    const attentionGrads = await compute(
      [this.attention(attentionGrad, 1, few, heads)],
      [attentionGradQ, attentionGradKV].map((kernel) => this.attention(kernel, sequences, tokens, heads)),
    );
    return {
      matmul: products,
      matmulHalf: halved,
      tensorCores: this.tensorCores ? await halves('tensor cores') : halved,
      fewRows: await this.rate('bytes', matmul(few, width), matmul(few, hidden), flopsPerSecond),
      attention: await compute(
        [this.attention(attention, 1, few, heads)],
        [this.attention(attention, sequences, tokens, heads)],
      ),
      attentionGrad: attentionGrads,
      attentionCores: this.tensorCores
        ? await compute(this.attentionCores(1, tokens, heads), this.attentionCores(sequences, tokens, heads))
        : attentionGrads,
      rows: await this.rate('bytes', this.norms(few, width), this.norms(many, width), flopsPerSecond),
      elements: { ...elementwise, flopsPerSecond },
    };
  }

  /** Keeps the device busy until its clock has risen. */
  async warm(): Promise<void> {
    const work = await this.layerTurns();
    const began = performance.now();
    while (performance.now() - began < WARM_MS) await this.clock.seconds(work, 8);
  }

  /**
   * Seconds that a dispatch takes more when the kernels of a layer take turns, as in a step, than when each goes on by itself:
   * a long kernel's instructions are read anew.
   */
  async switching(): Promise<number> {
    const kinds = await this.layerKinds();
    let alone = 0;
    for (const kind of kinds) alone += (await this.clock.secondsOfOne(kind)) / kinds.length;
    return Math.max((await this.clock.secondsOfOne(inTurns(kinds))) - alone, alone / 1000);
  }

  /** Seconds between the work of two submits that are there before the device gets to them. */
  async submitGap(): Promise<number> {
    const work = (await this.layerTurns()).slice(0, this.software ? 4 : 24);
    let [together, apart] = [Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY];
    for (let round = 0; round < 2 * ROUNDS; round++) {
      together = Math.min(together, await this.clock.seconds(work, SUBMITS));
      apart = Math.min(apart, await this.clock.seconds(work, 1, SUBMITS));
    }
    return Math.max(apart - together, together / 1e4) / (SUBMITS - 1);
  }

  /** The kernels of a layer of few rows, each over as many weights as take turns. */
  private layerKinds(): Promise<Ready[][]> {
    const { few, width, heads } = SIZES[this.software ? 'software' : 'gpu'];
    const products = (['nt', 'nn', 'tn'] as const).map((layout) => this.matmul(layout, 'float32', few, width, width));
    const others = [
      ...this.norms(few, width),
      ...this.relu(few * width),
      this.attention(attention, 1, few, heads),
      this.attention(attentionGrad, 1, few, heads),
    ];
    return Promise.all([...products, ...others.map((one) => [one])].map((kind) => Promise.all(kind)));
  }

  private async layerTurns(): Promise<Ready[]> {
    return inTurns(await this.layerKinds());
  }

  /** The host's seconds for a dispatch and for a submit as the executor makes them, while the device has little to do. */
  async encoding(): Promise<Pick<AdapterRates, 'dispatchSeconds' | 'submitSeconds'>> {
    const list = await Promise.all(
      Array.from({ length: ENCODED }, (_, i) => {
        if (i % 3 === 0) return this.ready(fill, { n: 64, offset: 0, value: 0 }, [this.storage(256)]);
        return i % 3 === 1 ? this.relu(64)[0] : this.norms(1, 64)[0];
      }),
    );
    const few = await this.encoded(list, FEW_DISPATCHES);
    const many = await this.encoded(list, MANY_DISPATCHES);
    const [fewer, more] = [ENCODED / MANY_DISPATCHES, ENCODED / FEW_DISPATCHES];
    const submitSeconds = Math.max((few - many) / (more - fewer), many / ENCODED / 100);
    return { submitSeconds, dispatchSeconds: Math.max(many - fewer * submitSeconds, many / 10) / ENCODED };
  }

  /** The host's seconds for all of these, so many in a submit: of several times, the middle one. */
  private async encoded(list: readonly Ready[], each: number): Promise<number> {
    const { device, guard } = this.open;
    const seconds: number[] = [];
    for (let round = 0; round < 2 * ROUNDS + 1; round++) {
      const began = performance.now();
      for (let i = 0; i < list.length; i += each) {
        const encoder = device.createCommandEncoder();
        encodeAll(encoder, {}, list.slice(i, i + each));
        device.queue.submit([encoder.finish()]);
      }
      seconds.push((performance.now() - began) / 1000);
      await guard(device.queue.onSubmittedWorkDone());
    }
    return seconds.sort((a, b) => a - b)[ROUNDS];
  }

  close(): void {
    this.clock.close();
    for (const buffer of this.buffers) buffer.destroy();
  }

  /** The line through two sizes: what a dispatch takes by itself, and its rate of `work`; the `other` rate is given. */
  private async rate(
    work: keyof Cost,
    small: readonly (Promise<Ready> | Promise<Ready>[])[],
    large: readonly (Promise<Ready> | Promise<Ready>[])[],
    other: number,
  ): Promise<KernelRate> {
    const a = await this.sample(await Promise.all(small.flat()), MEASURE_MS);
    const isSustained = work === 'flops' && !this.software;
    const b = await this.sample(await Promise.all(large.flat()), isSustained ? SUSTAINED_MS : MEASURE_MS);
    const slope = (b.seconds - a.seconds) / (b[work] - a[work]);
    // Where the small size is no quicker than the line, a dispatch by itself takes next to nothing.
    const seconds = Math.max(a.seconds - slope * a[work], a.seconds / 20);
    const perSecond = b[work] / Math.max(b.seconds - seconds, b.seconds / 20);
    return work === 'flops'
      ? { seconds, flopsPerSecond: perSecond, bytesPerSecond: other }
      : { seconds, flopsPerSecond: other, bytesPerSecond: perSecond };
  }

  /** Of one dispatch, the mean over these in turns. */
  private async sample(list: readonly Ready[], busyMs: number): Promise<Sample> {
    const seconds = await this.clock.secondsOfOne(list, busyMs);
    const mean = (work: keyof Cost) => list.reduce((sum, { cost }) => sum + cost[work], 0) / list.length;
    return { seconds, flops: mean('flops'), bytes: mean('bytes') };
  }

  /** A linear layer's product over `rows`: forward, the input's gradient or the weight's. */
  private matmul(layout: Layout, of: ProductKind, rows: number, out: number, width: number): Promise<Ready>[] {
    const [M, N, K] = { nt: [rows, out, width], nn: [rows, width, out], tn: [out, width, rows] }[layout];
    const lda = layout === 'tn' ? M : K;
    const ldb = layout === 'nt' ? K : N;
    const params = { M, N, K, aOffset: 0, lda, bOffset: 0, ldb, cOffset: 0, ldc: N, accumulate: 0 };
    const base = LAYOUTS[layout];
    const halved = withHalves(base, of === 'float32' ? [] : HALVES[layout]);
    const kernel = (of === 'tensor cores' && onTensorCores(base, HALVES[layout], params)) || halved;
    const cold = rows < 64 && !this.software ? Math.ceil(COLD_BYTES / (4 * out * width)) : 1;
    const elements = [M * K, K * N, M * N];
    return Array.from({ length: cold }, () => {
      const operands = kernel.operands.map(({ dtype }, i) => this.values(elements[i], dtype));
      return this.ready(kernel, params, operands);
    });
  }

  private attention(kernel: Kernel, B: number, T: number, H: number): Promise<Ready> {
    const [R, D] = [B * T, H * HEAD_WIDTH];
    const elements: Readonly<Record<string, number>> = {
      qkv: 3 * R * D,
      dqkv: 3 * R * D,
      out: R * D,
      dout: R * D,
    };
    const operands = kernel.operands.map(({ name, dtype }) =>
      name === 'control' ? this.storage(4 * CONTROL_ELEMENTS) : this.values(elements[name] ?? R * H, dtype),
    );
    return this.ready(kernel, packedParams(B, T, H), operands);
  }

  /** It and its gradients as 16-mixed has them. */
  private attentionCores(B: number, T: number, H: number): Promise<Ready>[] {
    const halves: readonly [Kernel, readonly string[], readonly string[]][] = [
      [attention, ['qkv'], ['out']],
      [attentionGradQ, ['dout', 'out', 'qkv'], ['dqkv']],
      [attentionGradKV, ['dout', 'qkv'], ['dqkv']],
    ];
    return halves.map(([kernel, reads, writes]) => {
      const onCores = attentionOnTensorCores(kernel, reads, writes, packedParams(B, T, H));
      return this.attention(onCores ?? kernel, B, T, H);
    });
  }

  private norms(R: number, D: number): Promise<Ready>[] {
    const elements: Readonly<Record<string, number>> = { weight: D, bias: D, stats: 2 * R };
    return [layerNormResidual, layerNormGrad].map((kernel) => {
      const operands = kernel.operands.map(({ name, dtype }) => this.values(elements[name] ?? R * D, dtype));
      return this.ready(kernel, { R, D, eps: 1e-5, accumulate: 0 }, operands);
    });
  }

  private relu(n: number): Promise<Ready>[] {
    return [this.ready(reluGrad, { n, scale: 1 }, [this.storage(4 * n), this.storage(4 * n)])];
  }

  /** Of several groups of parameters in turn, as in a step: none is found in a cache. */
  private adam(n: number): Promise<Ready>[] {
    return Array.from({ length: this.software ? 1 : 3 }, () => {
      const operands = [...[0, 1, 2, 3].map(() => this.values(n, 'f32')), this.storage(CONTROL_ELEMENTS * 4)];
      return this.ready(adam, { ...ADAM, n }, operands);
    });
  }

  private async ready(kernel: Kernel, params: Params, operands: readonly GPUBuffer[]): Promise<Ready> {
    const call = { kernel, params, ...runsAs(kernel, params, this.software) };
    const dispatch = await freeDispatch(this.open, call, [operands], (size, usage) => this.buffer(size, usage));
    return { ...dispatch, cost: kernel.cost(params) };
  }

  /** A buffer of so many random values. */
  private values(elements: number, dtype: DType): GPUBuffer {
    const { device } = this.open;
    const noise = this.noise.get(dtype) ?? this.makeNoise(dtype);
    const buffer = this.storage(elements * dtypeBytes[dtype]);
    const encoder = device.createCommandEncoder();
    for (let at = 0; at < buffer.size; at += NOISE_BYTES)
      encoder.copyBufferToBuffer(noise, 0, buffer, at, Math.min(NOISE_BYTES, buffer.size - at));
    device.queue.submit([encoder.finish()]);
    return buffer;
  }

  private makeNoise(dtype: DType): GPUBuffer {
    const random = seededRandom(1);
    const floats = Float32Array.from({ length: NOISE_BYTES / dtypeBytes[dtype] }, () => 2 * random() - 1);
    const noise = this.storage(NOISE_BYTES);
    this.open.device.queue.writeBuffer(noise, 0, dtype === 'f16' ? packHalves(floats) : floats);
    this.noise.set(dtype, noise);
    return noise;
  }

  private storage(bytes: number): GPUBuffer {
    const size = Math.max(16, Math.ceil(bytes / 4) * 4);
    return this.buffer(size, GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST);
  }

  private buffer(size: number, usage: GPUBufferUsageFlags): GPUBuffer {
    const buffer = this.open.device.createBuffer({ size, usage });
    this.buffers.push(buffer);
    return buffer;
  }
}

/** Of so many sequences of as many tokens, each looked at by all, over packed projections. */
function packedParams(B: number, T: number, H: number): Params {
  const D = H * HEAD_WIDTH;
  const packed = { groupSize: 1, stride: 3 * D, qOffset: 0, kOffset: D, vOffset: 2 * D };
  return { B, T, H, HD: HEAD_WIDTH, ...packed, causal: 0, dropout: 0.2, maskKey0: 1, maskKey1: 0 };
}

/** One of each kind after the other, until all of the kind with the most have had their turn. */
function inTurns(kinds: readonly (readonly Ready[])[]): Ready[] {
  const most = Math.max(...kinds.map((kind) => kind.length));
  return Array.from({ length: most }, (_, i) => kinds.map((kind) => kind[i % kind.length])).flat();
}

function encodeAll(
  encoder: GPUCommandEncoder,
  descriptor: GPUComputePassDescriptor,
  list: readonly Ready[],
  times = 1,
): void {
  const pass = encoder.beginComputePass(descriptor);
  for (let i = 0; i < times; i++) for (const each of list) encodeFree(pass, each);
  pass.end();
}

/** Times dispatches on the device's own clock, or, where it has none to ask, on the host's. */
class DeviceClock {
  private readonly queries: GPUQuerySet | null;
  private readonly resolved: GPUBuffer;
  private readonly readback: GPUBuffer;

  constructor(private readonly open: OpenDevice) {
    const { device } = open;
    const has = device.features.has('timestamp-query');
    this.queries = has ? device.createQuerySet({ type: 'timestamp', count: 2 }) : null;
    this.resolved = device.createBuffer({ size: 16, usage: GPUBufferUsage.QUERY_RESOLVE | GPUBufferUsage.COPY_SRC });
    this.readback = device.createBuffer({ size: 16, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
  }

  /** Seconds of one dispatch when these are done one after the other, often enough to keep the device busy for a while. */
  async secondsOfOne(list: readonly Ready[], busyMs = MEASURE_MS): Promise<number> {
    await this.seconds(list, 1);
    let times = 1;
    let seconds = await this.seconds(list, times);
    while (seconds * 1000 < busyMs / 2 && times * list.length < 4096) {
      times = Math.min(times * 8, Math.ceil((times * busyMs) / 1000 / Math.max(seconds, 1e-6)));
      seconds = await this.seconds(list, times);
    }
    // Of short times the quickest, since whatever else the machine does only adds; of long ones the last.
    for (let round = 1; round < ROUNDS; round++) {
      const again = await this.seconds(list, times);
      seconds = busyMs > MEASURE_MS ? again : Math.min(seconds, again);
    }
    return Math.max(seconds, 1e-9) / times / list.length;
  }

  close(): void {
    this.queries?.destroy();
    this.resolved.destroy();
    this.readback.destroy();
  }

  /** Seconds of so many submits, each of a pass with all of these so often. */
  async seconds(list: readonly Ready[], times: number, submits = 1): Promise<number> {
    const { device, guard } = this.open;
    const began = performance.now();
    const { queries } = this;
    const encoders = Array.from({ length: submits }, (_, i) => {
      const encoder = device.createCommandEncoder();
      const first = i === 0 ? { beginningOfPassWriteIndex: 0 } : {};
      const last = i === submits - 1 ? { endOfPassWriteIndex: 1 } : {};
      const timed = queries && (i === 0 || i === submits - 1);
      encodeAll(encoder, timed ? { timestampWrites: { querySet: queries, ...first, ...last } } : {}, list, times);
      return encoder;
    });
    if (queries) {
      const encoder = encoders[submits - 1];
      encoder.resolveQuerySet(queries, 0, 2, this.resolved, 0);
      encoder.copyBufferToBuffer(this.resolved, 0, this.readback, 0, 16);
    }
    for (const commands of encoders.map((encoder) => encoder.finish())) device.queue.submit([commands]);
    if (!queries) {
      await guard(device.queue.onSubmittedWorkDone());
      return (performance.now() - began) / 1000;
    }
    let seconds = 0;
    await guard(
      readMapped(this.readback, 16, (mapped) => {
        const [begin, end] = new BigUint64Array(mapped.slice().buffer);
        seconds = Number(end - begin) / 1e9;
      }),
    );
    return seconds;
  }
}
