import { fill } from '../ops/fill/fill.ts';
import type { OpenDevice } from '../runtime/device.ts';
import { encodeFree, freeDispatch } from '../runtime/free-dispatch.ts';
import { type MappedView, readMapped, UploadSlot } from '../runtime/staging.ts';
import type { CopyRates } from '../schedule/rates.ts';
import { mappedView } from './mapped-view.ts';
import { parallelCopy } from './parallel-copy.ts';

/** Slots of each direction, and bytes of a piece, as ranks with peers have them. */
const SLOTS = 3;
const SIZES = {
  gpu: { piece: 16 * 2 ** 20, memory: 384 * 2 ** 20, windowMs: 140, filled: 4 * 2 ** 20 },
  software: { piece: 2 ** 20, memory: 8 * 2 ** 20, windowMs: 60, filled: 2 ** 10 },
} as const;
const TINY_BYTES = 64;
/** Few enough to take no time, and enough to go through the threads that copy. */
const SMALL_BYTES = 2 ** 17;
/** Of each window the beginning is not counted: until then the other processes may not have begun. */
const LEAD_SHARE = 0.25;

/** What is measured, each in a window of its own, in all processes at once. */
const WINDOWS = ['round trip', 'host', 'device to staging', 'staging to device', 'up', 'down', 'both'] as const;
type Window = (typeof WINDOWS)[number];
const UPWARD: readonly Window[] = ['host', 'staging to device', 'up', 'both'];
const DOWNWARD: readonly Window[] = ['round trip', 'host', 'device to staging', 'down', 'both'];

/** What went on in a window, after its lead. */
export interface Traffic {
  readonly seconds: number;
  /** Copies that ended, of both directions, and the bytes of each direction. */
  readonly pieces: number;
  readonly upBytes: number;
  readonly downBytes: number;
  /** For how long at least one copy by the host was under way. */
  readonly copyingSeconds: number;
  /** From each submit of a copy down until the host knew that the device was done, in ascending order. */
  readonly downTrips: readonly number[];
}
export type CopyTraffic = Readonly<Record<Window, Traffic>>;

/**
 * Moves pieces through staging as the executor does, in one direction and in both, and says what went on. `uploads`: the usage of
 * upload staging, which decides where that lies. `begin` resolves to when to start, on the clock of Date.now(), once this process is ready: processes that are to copy at once get the same.
 */
export async function copyTraffic(
  open: OpenDevice,
  software: boolean,
  uploads: GPUBufferUsageFlags,
  begin: () => Promise<number>,
): Promise<CopyTraffic> {
  const bench = new CopyBench(open, software, uploads);
  try {
    await bench.warmUp();
    const from = (await begin()) - Date.now() + performance.now();
    const list: [Window, Traffic][] = [];
    for (const [i, window] of WINDOWS.entries())
      list.push([window, await bench.run(window, from + i * bench.windowMs)]);
    return Object.fromEntries(list) as Record<Window, Traffic>;
  } finally {
    bench.close();
  }
}

/** The rates that this traffic of so many processes comes to. */
export function copyRatesFrom(traffic: CopyTraffic, processes: number): CopyRates {
  const { up, down, both, host } = traffic;
  const upAlone = up.upBytes / up.copyingSeconds;
  const downAlone = down.downBytes / down.copyingSeconds;
  // The same threads copy both ways, one after the other in the model: what they gain by doing both at once counts for both.
  const gain = (both.upBytes / upAlone + both.downBytes / downAlone) / both.copyingSeconds;
  const perSecond = ({ upBytes, downBytes, seconds }: Traffic) => (upBytes + downBytes) / seconds;
  return {
    processes,
    uploadBytesPerSecond: upAlone * gain,
    hostCopyBytesPerSecond: downAlone * gain,
    downloadBytesPerSecond: perSecond(traffic['device to staging']),
    placeBytesPerSecond: perSecond(traffic['staging to device']),
    pieceSeconds: host.seconds / Math.max(1, host.pieces),
    roundTripSeconds: median(traffic['round trip'].downTrips),
  };
}

/** Of values in ascending order. */
function median(values: readonly number[]): number {
  return values[values.length >> 1] ?? 0;
}

/** Counts what happens from one moment to another, in ms of performance.now(), or to when each direction has had a copy. */
class Counter {
  private pieces = 0;
  private upBytes = 0;
  private downBytes = 0;
  private lastMs = 0;
  private readonly downTrips: number[] = [];
  private copyingMs = 0;
  private underWay = 0;
  private busySince = 0;

  constructor(
    private readonly fromMs: number,
    private readonly untilMs: number,
    private readonly directions: { readonly up: boolean; readonly down: boolean },
  ) {}

  get goesOn(): boolean {
    const { up, down } = this.directions;
    const isComplete = (!up || this.upBytes > 0) && (!down || this.downBytes > 0);
    return performance.now() < this.untilMs || !isComplete;
  }

  /** Whether what happens now counts. */
  get counts(): boolean {
    return performance.now() >= this.fromMs && this.goesOn;
  }

  begins(): void {
    if (this.underWay++ === 0) this.busySince = performance.now();
  }

  ends(): void {
    if (--this.underWay === 0) this.copyingMs += Math.max(0, performance.now() - Math.max(this.busySince, this.fromMs));
  }

  up(bytes: number): void {
    if (!this.counts) return;
    this.upBytes += bytes;
    this.pieces++;
    this.lastMs = performance.now();
  }

  down(bytes: number, tripMs: number): void {
    if (!this.counts) return;
    this.downTrips.push(tripMs / 1000);
    this.downBytes += bytes;
    this.pieces++;
    this.lastMs = performance.now();
  }

  traffic(): Traffic {
    const { pieces, upBytes, downBytes } = this;
    const elapsedMs = Math.max(this.untilMs, this.lastMs) - this.fromMs;
    return {
      seconds: elapsedMs / 1000,
      pieces,
      upBytes,
      downBytes,
      copyingSeconds: Math.min(elapsedMs, Math.max(this.copyingMs, 1e-3)) / 1000,
      downTrips: [...this.downTrips].sort((a, b) => a - b),
    };
  }
}

interface Up {
  readonly slot: UploadSlot;
  readonly buffer: GPUBuffer;
}

class CopyBench {
  readonly windowMs: number;
  private readonly pieceBytes: number;
  private readonly buffers: GPUBuffer[] = [];
  private readonly ups: readonly Up[];
  private readonly downs: readonly GPUBuffer[];
  private readonly place: GPUBuffer;
  private readonly filled: GPUBuffer;
  private fillCommands: (() => GPUCommandBuffer) | null = null;
  private readonly source: Uint8Array<ArrayBuffer>;
  private readonly target: Uint8Array<ArrayBuffer>;
  private readonly view: MappedView | undefined;
  private at = 0;

  constructor(
    private readonly open: OpenDevice,
    private readonly software: boolean,
    uploads: GPUBufferUsageFlags,
  ) {
    const { piece, memory, windowMs, filled } = SIZES[software ? 'software' : 'gpu'];
    this.windowMs = windowMs;
    this.pieceBytes = piece;
    this.view = software ? undefined : mappedView;
    this.place = this.buffer(GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST);
    this.filled = this.buffer(GPUBufferUsage.STORAGE, 4 * filled);
    const slots = (usage: number) => Array.from({ length: SLOTS }, () => this.buffer(usage));
    this.downs = slots(GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST);
    this.ups = slots(uploads).map((buffer) => ({
      buffer,
      slot: new UploadSlot(buffer, this.view),
    }));
    // Written once, so that no page is made while something is measured, and larger than what caches keep of it.
    this.source = new Uint8Array(memory).fill(1);
    this.target = new Uint8Array(memory).fill(1);
  }

  /** A piece each way, so that all is made before anything is measured. */
  async warmUp(): Promise<void> {
    this.fillCommands = await this.fills();
    const counter = new Counter(0, 0, { up: false, down: false });
    for (const up of this.ups) await this.up(up, this.pieceBytes, counter, true);
    for (const down of this.downs) await this.down(down, this.pieceBytes, counter, true);
  }

  /** What a window's copies come to, begun at that moment and ended before the window's end. */
  async run(window: Window, beginMs: number): Promise<Traffic> {
    await sleepUntil(beginMs);
    const directions = { up: UPWARD.includes(window), down: DOWNWARD.includes(window) };
    const counter = new Counter(beginMs + this.windowMs * LEAD_SHARE, beginMs + this.windowMs * 0.9, directions);
    const upward = (up: Up, bytes: number, copied = true) =>
      whilst(
        () => counter.goesOn,
        () => this.up(up, bytes, counter, copied),
      );
    const downward = (down: GPUBuffer, bytes: number, copied = true) =>
      whilst(
        () => counter.goesOn,
        () => this.down(down, bytes, counter, copied),
      );
    const { ups, downs, pieceBytes } = this;
    // The host copies while the device does, as in a step: both go to the same memory. A software device is the host.
    const copyOnHost = () =>
      whilst(
        () => counter.goesOn,
        () => this.copyOnHost(),
      );
    const beside = () => (this.software ? [] : [copyOnHost(), copyOnHost()]);
    const loops: Readonly<Record<Window, () => Promise<void>[]>> = {
      'round trip': () => [downward(downs[0], TINY_BYTES)],
      host: () => [...ups.map((up) => upward(up, SMALL_BYTES)), ...downs.map((down) => downward(down, SMALL_BYTES))],
      'device to staging': () => [...downs.map((down) => downward(down, pieceBytes, false)), ...beside()],
      'staging to device': () => [...ups.map((up) => upward(up, pieceBytes, false)), ...beside()],
      up: () => ups.map((up) => upward(up, pieceBytes)),
      down: () => downs.map((down) => downward(down, pieceBytes)),
      both: () => [...ups.map((up) => upward(up, pieceBytes)), ...downs.map((down) => downward(down, pieceBytes))],
    };
    await Promise.all(loops[window]());
    return counter.traffic();
  }

  close(): void {
    for (const buffer of this.buffers) buffer.destroy();
  }

  private async up(up: Up, bytes: number, counter: Counter, copied: boolean): Promise<void> {
    const { guard } = this.open;
    const mapped = await guard(up.slot.open(bytes));
    if (copied) {
      counter.begins();
      await guard(this.copy(mapped, this.next(this.source, bytes)));
      counter.ends();
    }
    up.slot.seal();
    this.submitCopy(up.buffer, this.place, bytes);
    up.slot.reopen();
    counter.up(bytes);
  }

  private async down(buffer: GPUBuffer, bytes: number, counter: Counter, copied: boolean): Promise<void> {
    this.submitCopy(this.place, buffer, bytes);
    const submitted = performance.now();
    let trip = 0;
    const read = async (mapped: Uint8Array<ArrayBuffer>) => {
      trip = performance.now() - submitted;
      if (!copied) return;
      counter.begins();
      await this.copy(this.next(this.target, bytes), mapped);
      counter.ends();
    };
    await this.open.guard(readMapped(buffer, bytes, read, this.view));
    counter.down(bytes, trip);
  }

  private copyOnHost(): Promise<void> {
    const source = this.next(this.source, this.pieceBytes);
    return this.open.guard(this.copy(this.next(this.target, this.pieceBytes), source));
  }

  /** The next part of the host's memory, all of it in turn. */
  private next(memory: Uint8Array<ArrayBuffer>, bytes: number): Uint8Array<ArrayBuffer> {
    this.at = (this.at + this.pieceBytes) % (memory.byteLength - this.pieceBytes + 1);
    return memory.subarray(this.at, this.at + bytes);
  }

  private copy(target: Uint8Array<ArrayBuffer>, source: Uint8Array<ArrayBuffer>): Promise<void> {
    return this.software ? Promise.resolve(target.set(source)) : parallelCopy(target, source);
  }

  private submitCopy(from: GPUBuffer, to: GPUBuffer, bytes: number): void {
    const { device } = this.open;
    const encoder = device.createCommandEncoder();
    encoder.copyBufferToBuffer(from, 0, to, 0, bytes);
    device.queue.submit([encoder.finish()]);
    // Between copies a step runs kernels: a device without any would copy at the clock of one that idles.
    if (bytes === this.pieceBytes && this.fillCommands) device.queue.submit([this.fillCommands()]);
  }

  /** Makes commands for a kernel that keeps the device's clock up. */
  private async fills(): Promise<() => GPUCommandBuffer> {
    const call = { kernel: fill, params: { n: this.filled.size / 4, offset: 0, value: 0 }, tiled: false };
    const buffer = (size: number, usage: GPUBufferUsageFlags) => this.buffer(usage, size);
    const dispatch = await freeDispatch(this.open, call, [[this.filled]], buffer);
    return () => {
      const encoder = this.open.device.createCommandEncoder();
      const pass = encoder.beginComputePass();
      encodeFree(pass, dispatch);
      pass.end();
      return encoder.finish();
    };
  }

  private buffer(usage: GPUBufferUsageFlags, size = this.pieceBytes): GPUBuffer {
    const buffer = this.open.device.createBuffer({ size, usage });
    this.buffers.push(buffer);
    return buffer;
  }
}

async function whilst(goesOn: () => boolean, work: () => Promise<void>): Promise<void> {
  while (goesOn()) await work();
}

function sleepUntil(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, Math.max(0, ms - performance.now())));
}
