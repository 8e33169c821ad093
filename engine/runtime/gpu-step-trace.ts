import type { Schedule } from '../schedule/schedule.ts';
import { type Span, type StepTimes, StepTrace, type TracedWait } from '../schedule/step-trace.ts';

/** WebGPU's limit of a query set. */
const MAX_QUERIES = 4096;
const TIMESTAMP_BYTES = 8;
/** How often the two clocks are compared: the moment between two readings of the host's narrows with each. */
const COMPARISONS = 8;

/** Timestamps of passes on a device's clock. What it makes is not of the run, and is not in its ledger: 16 bytes a pass. */
class Timestamps {
  private readonly sets: GPUQuerySet[] = [];
  private passes = 0;

  constructor(private readonly device: GPUDevice) {}

  /** Where the next pass writes its begin and end. */
  next(): GPUComputePassTimestampWrites {
    const first = (this.passes++ * 2) % MAX_QUERIES;
    if (first === 0) this.sets.push(this.device.createQuerySet({ type: 'timestamp', count: MAX_QUERIES }));
    return {
      querySet: this.sets[this.sets.length - 1],
      beginningOfPassWriteIndex: first,
      endOfPassWriteIndex: first + 1,
    };
  }

  /** Begin and end of each pass in nanoseconds, once all are done; what was made for them is given back. */
  async read(): Promise<readonly (readonly [begin: bigint, end: bigint])[]> {
    const { device, sets } = this;
    if (sets.length === 0) return [];
    const setBytes = MAX_QUERIES * TIMESTAMP_BYTES;
    const size = sets.length * setBytes;
    const resolved = device.createBuffer({ size, usage: GPUBufferUsage.QUERY_RESOLVE | GPUBufferUsage.COPY_SRC });
    const readback = device.createBuffer({ size, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
    try {
      const encoder = device.createCommandEncoder();
      for (const [i, set] of sets.entries()) {
        const queries = Math.min(MAX_QUERIES, this.passes * 2 - i * MAX_QUERIES);
        encoder.resolveQuerySet(set, 0, queries, resolved, i * setBytes);
      }
      encoder.copyBufferToBuffer(resolved, 0, readback, 0, size);
      device.queue.submit([encoder.finish()]);
      await readback.mapAsync(GPUMapMode.READ);
      const times = new BigUint64Array(readback.getMappedRange());
      return Array.from({ length: this.passes }, (_, i) => [times[2 * i], times[2 * i + 1]] as const);
    } finally {
      for (const made of [resolved, readback, ...sets]) made.destroy();
    }
  }
}

/** A trace whose compute lane is timed by the device, a pass a step, and brought to the host's clock. */
export class GpuStepTrace extends StepTrace {
  private readonly timestamps: Timestamps;
  private readonly timed: number[] = [];

  private constructor(
    device: GPUDevice,
    /** Host milliseconds at the device's time `zero`, and how far that may be off. */
    private readonly aligned: { readonly zero: bigint; readonly hostMs: number; readonly withinMs: number },
  ) {
    super();
    this.timestamps = new Timestamps(device);
  }

  /** Waits until the device has nothing to do, then compares the clocks. */
  static async create(device: GPUDevice): Promise<GpuStepTrace> {
    await device.queue.onSubmittedWorkDone();
    const timestamps = new Timestamps(device);
    const around: Span[] = [];
    for (let i = 0; i < COMPARISONS; i++) {
      const encoder = device.createCommandEncoder();
      encoder.beginComputePass({ timestampWrites: timestamps.next() }).end();
      const commands = encoder.finish();
      const startMs = performance.now();
      device.queue.submit([commands]);
      await device.queue.onSubmittedWorkDone();
      around.push({ startMs, endMs: performance.now() });
    }
    const passes = await timestamps.read();
    const zero = passes[0][0];
    // Each pass ran within its moments of the host: what is left between all of these is what is not known.
    const earliest = Math.max(...around.map(({ startMs }, i) => startMs - milliseconds(passes[i][0] - zero)));
    const latest = Math.min(...around.map(({ endMs }, i) => endMs - milliseconds(passes[i][1] - zero)));
    return new GpuStepTrace(device, {
      zero,
      hostMs: (earliest + latest) / 2,
      withinMs: Math.abs(latest - earliest) / 2,
    });
  }

  /** Where the pass of a compute step writes its times. */
  writesOf(step: number): GPUComputePassTimestampWrites {
    this.timed.push(step);
    return this.timestamps.next();
  }

  override async finish({ steps }: Pick<Schedule, 'steps'>): Promise<StepTimes> {
    const { zero, hostMs, withinMs } = this.aligned;
    const onDevice = new Map<number, Span>();
    for (const [i, [begin, end]] of (await this.timestamps.read()).entries())
      onDevice.set(this.timed[i], {
        startMs: hostMs + milliseconds(begin - zero),
        endMs: hostMs + milliseconds(end - zero),
      });
    // The lane is in order: a pass that the device began while the one before still ran counts from that one's end.
    const compute = steps.filter(({ lane }) => lane === 'compute');
    let freeAtMs = onDevice.get(compute.find(({ id }) => onDevice.has(id))?.id ?? -1)?.startMs ?? hostMs;
    for (const { id } of compute) {
      const { startMs, endMs } = onDevice.get(id) ?? { startMs: freeAtMs, endMs: freeAtMs };
      const span = { startMs: Math.max(startMs, freeAtMs), endMs: Math.max(endMs, freeAtMs) };
      this.spans.set(id, span);
      freeAtMs = span.endMs;
    }
    const spans = steps.map(({ id }) => this.spans.get(id)!);
    const lanes = new Map(steps.map(({ id, lane }) => [id, lane]));
    const waits = this.waits.flatMap((wait) =>
      lanes.get(wait.step) === 'compute' ? idleParts(wait, compute, spans) : [wait],
    );
    return { clock: { kind: 'device', alignedWithinMs: withinMs }, spans, waits };
  }
}

/** The host waits for compute steps while the device still works on earlier ones: only what the device idled is a wait. */
function idleParts(wait: TracedWait, compute: Schedule['steps'], spans: readonly Span[]): TracedWait[] {
  const { visit } = compute.find(({ id }) => id === wait.step)!;
  // All that a visit needs is awaited before its first step.
  const at = compute.findIndex((step) => step.visit === visit);
  const before = at > 0 ? spans[compute[at - 1].id].endMs : Number.NEGATIVE_INFINITY;
  const startMs = Math.max(wait.startMs, before);
  const endMs = Math.min(wait.endMs, spans[compute[at].id].startMs);
  return endMs > startMs ? [{ ...wait, startMs, endMs }] : [];
}

function milliseconds(nanoseconds: bigint): number {
  return Number(nanoseconds) / 1e6;
}
