import { fork } from 'node:child_process';
import { createRequire } from 'node:module';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { StudioError } from '../errors.ts';
import { CONTROL, CONTROL_ELEMENTS } from '../ops/control.ts';
import { fill } from '../ops/fill/fill.ts';
import { foldGrid, type Kernel, PARAMS_BYTES, type Params, tiledVariant, writeParams } from '../ops/kernel.ts';
import { matmulNN, matmulNT, matmulTN } from '../ops/matmul/matmul.ts';
import { adam } from '../ops/optimizer/adam.ts';
import { type OpenDevice, openDevice } from '../runtime/device.ts';
import { readMapped, UploadSlot } from '../runtime/staging.ts';
import type { AdapterRates } from '../schedule/profile.ts';
import { openAdapter } from './adapters.ts';

/** For about how long each rate is measured: eight of them are within two seconds. */
const MEASURE_MS = 120;
const ROUNDS = 4;
/** A kernel that is done sooner than this measures its dispatch rather than its work. */
const SHORT_SECONDS = 0.5e-3;
/** How long a calibration may take before it is given up. */
const CHILD_TIMEOUT_MS = 60_000;
const COPY_BYTES = 4 * 2 ** 20;
const DISPATCHES_PER_SUBMIT = 10;
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

/** Opens an adapter in this process and measures its rates, in about two seconds. Throws StudioError `no-adapter`. */
export async function calibrateAdapter(id: string): Promise<AdapterRates> {
  const { adapter, entry } = await openAdapter(id);
  const open = await openDevice(adapter);
  try {
    return await measureRates(open, entry.software);
  } finally {
    open.close();
  }
}

/**
 * Calibrates an adapter in a process of its own: one that crashes or hangs costs only itself. Throws StudioError
 * `no-adapter`, which says how it ended.
 */
export function calibrateInChild(id: string): Promise<AdapterRates> {
  const probe = fileURLToPath(new URL('./calibrate-probe.ts', import.meta.url));
  const loader = createRequire(import.meta.url).resolve('tsx');
  const child = fork(probe, [id], {
    execArgv: ['--import', pathToFileURL(loader).href],
    stdio: ['ignore', 'ignore', 'ignore', 'ipc'],
  });
  return new Promise((resolve, reject) => {
    let said: { rates?: AdapterRates; problem?: string } = {};
    const timer = setTimeout(() => {
      said = { problem: `it did not end within ${CHILD_TIMEOUT_MS} ms` };
      child.kill('SIGKILL');
    }, CHILD_TIMEOUT_MS);
    child.on('message', (message) => {
      said = message as typeof said;
    });
    child.on('error', ({ message }) => {
      said = { problem: message };
    });
    child.on('close', (code, signal) => {
      clearTimeout(timer);
      if (said.rates) resolve(said.rates);
      else {
        const why = said.problem ?? `it ended with ${signal ?? `exit code ${code}`}`;
        reject(new StudioError('no-adapter', `${id} cannot be calibrated: ${why}`, { id }));
      }
    });
  });
}

/**
 * The rates of a device as the engine uses it: matmuls of all three layouts and Adam's update in the variants that training
 * would take, dispatches of no work, and copies to and from the host through a mapped buffer.
 */
export async function measureRates(open: OpenDevice, software: boolean): Promise<AdapterRates> {
  const bench = new RateBench(open, software);
  try {
    const flopsPerSecond = await bench.matmuls();
    const memoryBytesPerSecond = await bench.updates();
    const dispatchSeconds = await bench.dispatches();
    const copySeconds = await bench.copies(16);
    const large = await bench.copies(COPY_BYTES);
    const hostBytesPerSecond = COPY_BYTES / Math.max(large - copySeconds, large / 10);
    return { flopsPerSecond, memoryBytesPerSecond, hostBytesPerSecond, dispatchSeconds, copySeconds };
  } finally {
    bench.close();
  }
}

interface Ready {
  readonly pipeline: GPUComputePipeline;
  readonly bindGroup: GPUBindGroup;
  readonly grid: readonly [number, number, number];
}

class RateBench {
  private readonly buffers: GPUBuffer[] = [];

  constructor(
    private readonly open: OpenDevice,
    private readonly software: boolean,
  ) {}

  /** Of three layouts, one after the other: their work over their time. Larger where a small one is too soon done. */
  async matmuls(): Promise<number> {
    for (const size of [256, 2048]) {
      let flops = 0;
      let seconds = 0;
      const operands = [0, 1, 2].map(() => this.storage(size * size * 4));
      for (const kernel of [matmulNT, matmulNN, matmulTN]) {
        const strides = { aOffset: 0, lda: size, bOffset: 0, ldb: size, cOffset: 0, ldc: size };
        const params = { M: size, N: size, K: size, ...strides, accumulate: 0 };
        seconds += await this.time(await this.ready(kernel, params, operands));
        flops += kernel.cost(params).flops;
      }
      if (this.software || seconds / 3 > SHORT_SECONDS || size === 2048) return flops / seconds;
    }
    throw new RangeError('unreachable');
  }

  /** Bytes a second of Adam's update, which moves the most memory of a step: four arrays, three of them both ways. */
  async updates(): Promise<number> {
    const { device } = this.open;
    const control = this.storage(CONTROL_ELEMENTS * 4);
    const scalars = new Float32Array(CONTROL_ELEMENTS);
    for (const name of ['biasCorrection1', 'sqrtBiasCorrection2', 'clip'] as const) scalars[CONTROL[name]] = 1;
    device.queue.writeBuffer(control, 0, scalars);
    const large = Math.min(32 * 2 ** 20, Math.floor(device.limits.maxStorageBufferBindingSize / 16) * 4);
    let rate = 0;
    for (const n of [2 ** 18, large]) {
      const operands = [...[0, 1, 2, 3].map(() => this.storage(n * 4)), control];
      const seconds = await this.time(await this.ready(adam, { ...ADAM, n }, operands));
      rate = adam.cost({ n }).bytes / seconds;
      if (this.software || seconds > SHORT_SECONDS) break;
    }
    return rate;
  }

  async dispatches(): Promise<number> {
    const nothing = await this.ready(fill, { n: 1, offset: 0, value: 0 }, [this.storage(16)]);
    return this.time(nothing, DISPATCHES_PER_SUBMIT);
  }

  /** Seconds of one copy of that many bytes, the mean of both ways. */
  async copies(bytes: number): Promise<number> {
    const { device } = this.open;
    const there = this.storage(bytes);
    const host = new Uint8Array(bytes);
    const submitCopy = (from: GPUBuffer, to: GPUBuffer) => {
      const encoder = device.createCommandEncoder();
      encoder.copyBufferToBuffer(from, 0, to, 0, bytes);
      device.queue.submit([encoder.finish()]);
    };
    const down = this.buffer(bytes, GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST);
    const up = this.buffer(bytes, GPUBufferUsage.MAP_WRITE | GPUBufferUsage.COPY_SRC);
    const slot = new UploadSlot(up);
    return this.repeat(async (times) => {
      for (let i = 0; i < times; i++) {
        submitCopy(there, down);
        await this.open.guard(readMapped(down, bytes, (mapped) => host.set(mapped)));
        (await this.open.guard(slot.open(bytes))).set(host);
        slot.seal();
        submitCopy(up, there);
        slot.reopen();
      }
      await this.open.guard(device.queue.onSubmittedWorkDone());
    }, 2);
  }

  close(): void {
    for (const buffer of this.buffers) buffer.destroy();
  }

  /** Seconds of one of the dispatches that a submit holds. */
  private time({ pipeline, bindGroup, grid }: Ready, perSubmit = 1): Promise<number> {
    const { device } = this.open;
    return this.repeat(async (times) => {
      for (let i = 0; i < times; i++) {
        const encoder = device.createCommandEncoder();
        const pass = encoder.beginComputePass();
        for (let j = 0; j < perSubmit; j++) {
          pass.setPipeline(pipeline);
          pass.setBindGroup(0, bindGroup);
          pass.dispatchWorkgroups(...grid);
        }
        pass.end();
        device.queue.submit([encoder.finish()]);
      }
      await this.open.guard(device.queue.onSubmittedWorkDone());
    }, perSubmit);
  }

  /**
   * Has `work` done once, twice, four times … until it takes long enough, then as often a few times more; seconds of one of
   * the `parts` of one in the quickest of these, since whatever else the machine does only adds.
   */
  private async repeat(work: (times: number) => Promise<void>, parts: number): Promise<number> {
    await work(1);
    for (let times = 1; ; times *= 2) {
      const started = performance.now();
      await work(times);
      const elapsedMs = performance.now() - started;
      if (elapsedMs < MEASURE_MS / ROUNDS / 2 && times < 1e6) continue;
      let bestMs = elapsedMs;
      for (let round = 1; round < ROUNDS; round++) {
        const again = performance.now();
        await work(times);
        bestMs = Math.min(bestMs, performance.now() - again);
      }
      return bestMs / 1000 / times / parts;
    }
  }

  private async ready(kernel: Kernel, params: Params, operands: readonly GPUBuffer[]): Promise<Ready> {
    const { device, kernels } = this.open;
    const variant = this.software ? undefined : tiledVariant(kernel, params);
    const dispatch = { kernel, operands: [], params, tiled: variant !== undefined };
    const threads = kernel.threads(params);
    const bytes = new ArrayBuffer(PARAMS_BYTES);
    writeParams(kernel, params, threads, new DataView(bytes), 0);
    const uniform = this.buffer(PARAMS_BYTES, GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST);
    device.queue.writeBuffer(uniform, 0, bytes);
    const bindGroup = device.createBindGroup({
      layout: kernels.groupLayout(operands.length),
      entries: [...operands, uniform].map((buffer, binding) => ({ binding, resource: { buffer } })),
    });
    const grid = variant ? variant.workgroups(params) : ([...foldGrid(threads), 1] as const);
    return { pipeline: await kernels.pipeline(dispatch), bindGroup, grid };
  }

  private storage(bytes: number): GPUBuffer {
    return this.buffer(bytes, GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST);
  }

  private buffer(size: number, usage: GPUBufferUsageFlags): GPUBuffer {
    const buffer = this.open.device.createBuffer({ size, usage });
    this.buffers.push(buffer);
    return buffer;
  }
}
