import { type AdapterEntry, openAdapter } from '../engine/node/adapters.ts';
import { bytesOf, type Call } from '../engine/ops/graph.ts';
import { type OpenDevice, openDevice } from '../engine/runtime/device.ts';
import { type Encode, RandomBuffers, readyDispatch } from './dispatch.ts';
import { GpuTime } from './gpu-time.ts';

/** How long a GPU is kept busy before it is timed: the clock of an idle H200 falls from 1,980 to 345 MHz. */
const WARM_MS = 300;
/** For about how long each figure keeps the device busy. */
const MEASURE_MS = 20;
const MOST_TIMES = 2048;

/** An adapter that a benchmark has opened, with its clock. */
export class BenchDevice {
  readonly clock: GpuTime;

  private constructor(
    readonly adapter: GPUAdapter,
    readonly entry: AdapterEntry,
    readonly open: OpenDevice,
  ) {
    this.clock = new GpuTime(open.device);
  }

  /** Throws StudioError `no-adapter` where there is none of that name. */
  static async open(name: string): Promise<BenchDevice> {
    const { adapter, entry } = await openAdapter(name);
    return new BenchDevice(adapter, entry, await openDevice(adapter));
  }

  get software(): boolean {
    return this.entry.software;
  }

  /** Milliseconds of one of `times` rounds in a pass. */
  async msOf(round: Encode, times = 1): Promise<number> {
    const pass = this.clock.ofPass((pass) => {
      for (let i = 0; i < times; i++) round(pass, i);
    });
    return (await this.open.guard(pass)) / times;
  }

  /** Runs `work` over and over until a GPU is at its full clock; once on a software adapter. */
  async warm(work: () => Promise<unknown>, forMs = WARM_MS): Promise<void> {
    const began = performance.now();
    do await work();
    while (!this.software && performance.now() - began < forMs);
  }

  /** Rounds that a pass needs to keep the device busy long enough to be timed. */
  async timesOf(round: Encode): Promise<number> {
    await this.msOf(round);
    const ms = await this.msOf(round);
    return Math.max(1, Math.min(MOST_TIMES, Math.ceil(MEASURE_MS / Math.max(ms, 0.005))));
  }

  /** Calls one after the other, over buffers of their own, of which there are `copies` that take turns. */
  async readyCalls(calls: readonly Call[], copies = 1): Promise<{ readonly encode: Encode; destroy(): void }> {
    const buffers = new RandomBuffers(this.open.device);
    const made = Array.from({ length: copies }, () => new Map<number, GPUBuffer>());
    const bufferOf = (value: Call['operands'][number], known: Map<number, GPUBuffer>) => {
      const dtype = value.role === 'control' ? 'u32' : value.dtype;
      const buffer = known.get(value.id) ?? buffers.make(bytesOf(value), dtype);
      known.set(value.id, buffer);
      return buffer;
    };
    const ready: Encode[] = [];
    for (const { kernel, params, operands } of calls) {
      const turns = made.map((known) => operands.map((value) => bufferOf(value, known)));
      ready.push(await readyDispatch(this.open, kernel, params, turns, this.software));
    }
    const encode: Encode = (pass, turn) => {
      for (const each of ready) each(pass, turn);
    };
    return { encode, destroy: () => buffers.destroy() };
  }

  close(): void {
    this.open.close();
  }
}
