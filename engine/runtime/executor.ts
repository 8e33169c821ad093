import { exchange } from '../comm/exchange.ts';
import type { Mailbox } from '../comm/mailbox.ts';
import { StudioError } from '../errors.ts';
import { HostTensors } from '../interpret/host-tensors.ts';
import { outcomeOf, reportOf } from '../interpret/outcome.ts';
import { CONTROL } from '../ops/control.ts';
import type { Kernel, Params } from '../ops/kernel.ts';
import type { ExecutableRun, ExecutableStep } from '../schedule/compile.ts';
import { liveBytes, sumCategories } from '../schedule/memory.ts';
import type { MeasuredMemory, RankEngine, StepFeed, StepOutcome } from '../schedule/rank-engine.ts';
import { type Recorder, SET_UP } from '../schedule/recorder.ts';
import { type Range, type Step, touches } from '../schedule/schedule.ts';
import { StepTrace, traced } from '../schedule/step-trace.ts';
import { asStored, fromStored, storedRange } from '../schedule/stored-floats.ts';
import { BufferLedger } from './buffer-ledger.ts';
import { type ActionOf, Copies, type CopyOptions } from './copies.ts';
import type { OpenDevice } from './device.ts';
import { GpuStepTrace } from './gpu-step-trace.ts';
import { dispatchOnce, prepareInitialValues } from './initial-values.ts';
import { MappedTensors } from './mapped-tensors.ts';
import { type PreparedDispatch, prepareDispatches } from './prepare.ts';
import { type PlacedRange, Slabs } from './slabs.ts';
import { readMapped } from './staging.ts';
import { type LaneEngine, TrainingStep } from './training-step.ts';
import { assertUnshared } from './unshared.ts';

export interface ExecutorOptions extends CopyOptions {
  /** Files every binding and copy, to measure memory. */
  readonly recorder?: Recorder;
  /** How long a step of training may go on with nothing done in any lane, in ms: longer than any wait for a peer. */
  readonly stallMs?: number;
}

/** A minute more than a rank waits for a peer. */
const STALL_MS = 660_000;

/**
 * Runs one rank's schedule on a GPU. Each lane is one async loop over its own steps; it waits where the schedule says so
 * and decides nothing. Everything is made before step 0: buffers, pipelines, bind groups, uniforms.
 */
export class Executor implements RankEngine, LaneEngine {
  /** Command buffers submitted since the last step began. */
  submits = 0;
  readonly copies: Copies;
  private readonly peak: Pick<MeasuredMemory, 'liveBytes' | 'byCategory'>;
  private readonly host: HostTensors;
  private hostLane: Promise<void> = Promise.resolve();
  private lastOutcome: Promise<unknown> = Promise.resolve();
  private lastRead: Promise<unknown> = Promise.resolve();

  private constructor(
    private readonly run: ExecutableRun,
    private readonly open: OpenDevice,
    private readonly ledger: BufferLedger,
    private readonly slabs: Slabs,
    mapped: MappedTensors,
    private readonly prepared: readonly (readonly PreparedDispatch[][])[],
    private readonly mailbox: Mailbox,
    private readonly options: ExecutorOptions,
  ) {
    this.host = new HostTensors(run, mailbox, false);
    this.copies = new Copies(this, slabs, this.host, mapped, mailbox, options);
    const live = run.steps.flatMap((step) => liveBytes(step.schedule));
    const byCategory = live.reduce((a, b) => (sumCategories(b) > sumCategories(a) ? b : a));
    this.peak = { liveBytes: sumCategories(byCategory), byCategory };
  }

  /** Makes all that a run needs on the device and fills its tables. Throws StudioError. */
  static async create(
    run: ExecutableRun,
    open: OpenDevice,
    mailbox: Mailbox,
    options: ExecutorOptions = {},
  ): Promise<Executor> {
    const ledger = new BufferLedger(open.device);
    const slabs = await Slabs.create(run, ledger);
    const mapped = await MappedTensors.create(run, ledger, options.view);
    const prepared: PreparedDispatch[][][] = [];
    for (const step of run.steps) prepared.push(await prepareDispatches(open, slabs, step));
    await prepareInitialValues(open, run);
    ledger.seal();
    const executor = new Executor(run, open, ledger, slabs, mapped, prepared, mailbox, options);
    for (const step of run.steps)
      for (const { id, contents } of step.schedule.tensors)
        if (contents) executor.writeNow(step, { tensor: id, offsetBytes: 0, bytes: contents.byteLength }, contents);
    return executor;
  }

  async clear(tensor: string): Promise<void> {
    const { step, range } = this.stateRange(tensor, 0);
    if (isHost(step, range)) {
      for (const piece of await this.device(this.copies.hostBytes(step, range, 'write'))) piece.fill(0);
      return;
    }
    const { buffer, offset, size } = this.slabs.place(step, range);
    const encoder = this.open.device.createCommandEncoder();
    encoder.clearBuffer(buffer, offset, size);
    this.open.device.queue.submit([encoder.finish()]);
    this.record(step, 0, SET_UP, range);
  }

  async write(
    tensor: string,
    offsetBytes: number,
    data: Float32Array<ArrayBuffer> | Uint32Array<ArrayBuffer>,
  ): Promise<void> {
    const { step, range } = this.stateRange(tensor, offsetBytes, data.byteLength);
    const stored = asStored(step.schedule.tensors[range.tensor], offsetBytes, data);
    if (isHost(step, range)) {
      let at = stored.byteOffset;
      for (const piece of await this.device(this.copies.hostBytes(step, range, 'write'))) {
        piece.set(new Uint8Array(stored.buffer, at, piece.byteLength));
        at += piece.byteLength;
      }
      return;
    }
    this.writeNow(step, range, stored);
    // Bounds what the queue keeps of uploads that the device has not taken yet.
    await this.device(this.open.device.queue.onSubmittedWorkDone());
  }

  async make(kernel: Kernel, tensors: readonly string[], params: Params): Promise<void> {
    const { init } = this.run;
    if (!init.device) throw new StudioError('internal', 'the plan lets the host make initial values');
    const places = tensors.map((tensor) => this.stateRange(tensor, 0));
    const [{ step }] = places;
    const dispatch = { kernel, operands: places.map(({ range }) => range), params, tiled: false };
    await dispatchOnce(this.open, this.slabs, step, dispatch, init.device.uniformOffsetBytes);
    for (const range of dispatch.operands) this.record(step, 0, SET_UP, range);
  }

  /** Reads share one staging slot and take turns. */
  read(tensor: string, offsetBytes: number, bytes: number): Promise<Float32Array<ArrayBuffer>> {
    const values = this.lastRead.then(() => this.readNow(tensor, offsetBytes, bytes));
    this.lastRead = values.catch(() => undefined);
    return values;
  }

  private async readNow(tensor: string, offsetBytes: number, bytes: number): Promise<Float32Array<ArrayBuffer>> {
    const { step, range } = this.stateRange(tensor, offsetBytes, bytes);
    const stored = step.schedule.tensors[range.tensor];
    const values = new Float32Array(range.bytes / 4);
    const into = new Uint8Array(values.buffer);
    if (isHost(step, range)) {
      let at = 0;
      for (const piece of await this.device(this.copies.hostBytes(step, range, 'read'))) {
        into.set(piece, at);
        at += piece.byteLength;
      }
      return fromStored(stored, offsetBytes, bytes, values);
    }
    const from = this.slabs.place(step, range);
    const staging = this.downloadStaging();
    for (let done = 0; done < range.bytes; done += staging.size) {
      const size = Math.min(staging.size, range.bytes - done);
      const encoder = this.open.device.createCommandEncoder();
      encoder.copyBufferToBuffer(from.buffer, from.offset + done, staging.buffer, 0, size);
      this.open.device.queue.submit([encoder.finish()]);
      await this.device(readMapped(staging.buffer, size, (mapped) => into.set(mapped, done)));
    }
    return fromStored(stored, offsetBytes, bytes, values);
  }

  start(feed: StepFeed): { submitted: Promise<void>; outcome: Promise<StepOutcome> } {
    this.submits = 0;
    if (feed.shapeIndex !== this.run.evaluation) this.ledger.allocRetries += this.run.slotWaits;
    const training = new TrainingStep(this, feed, this.options.stallMs ?? STALL_MS);
    const { submitted, outcome, hostLane } = training.run(this.hostLane, this.lastOutcome);
    this.hostLane = hostLane;
    this.lastOutcome = outcome.catch(() => undefined);
    return { submitted, outcome };
  }

  async trace(): Promise<StepTrace> {
    const { device } = this.open;
    return device.features.has('timestamp-query') ? this.device(GpuStepTrace.create(device)) : new StepTrace();
  }

  memory(): MeasuredMemory {
    const { currentBytes, peakBytes, hostBytes, allocRetries, ooms } = this.ledger;
    return { currentBytes, peakBytes, ...this.peak, hostBytes: this.host.bytes() + hostBytes, allocRetries, ooms };
  }

  async close(): Promise<void> {
    this.copies.close();
    this.mailbox.close();
    await this.copies.ended();
    this.ledger.destroyAll();
    this.open.device.queue.submit([]);
  }

  /** What follows is for the lanes of a TrainingStep and its copies. */
  compiled(feed: StepFeed): ExecutableStep {
    return this.run.steps[feed.shapeIndex];
  }

  /**
   * Submits compute steps with the time of each: a pass each where the device keeps the time, else a submit each, awaited.
   */
  async submitTraced(feed: StepFeed, steps: readonly Step[], trace: StepTrace): Promise<void> {
    if (trace instanceof GpuStepTrace) {
      const encoder = this.encoder();
      for (const step of steps) {
        const timed = this.prepared[feed.shapeIndex][step.id].length > 0;
        this.encodeDispatches(encoder, feed, [step], timed ? { timestampWrites: trace.writesOf(step.id) } : undefined);
      }
      this.submit(encoder);
      return;
    }
    for (const step of steps) {
      trace.begin(step.id);
      const encoder = this.encoder();
      this.encodeDispatches(encoder, feed, [step]);
      this.submit(encoder);
      await this.device(this.open.device.queue.onSubmittedWorkDone());
      trace.end(step.id);
    }
  }

  /** Encodes the dispatches of steps into one pass. */
  encodeDispatches(
    encoder: GPUCommandEncoder,
    feed: StepFeed,
    steps: readonly Step[],
    timing?: GPUComputePassDescriptor,
  ): void {
    const prepared = this.prepared[feed.shapeIndex];
    const pass = encoder.beginComputePass(timing);
    for (const step of steps)
      for (const { pipeline, bindGroup, grid } of prepared[step.id]) {
        pass.setPipeline(pipeline);
        pass.setBindGroup(0, bindGroup);
        pass.dispatchWorkgroups(grid[0], grid[1], grid[2]);
      }
    pass.end();
    const compiled = this.compiled(feed);
    for (const step of steps) this.recordStep(compiled, feed, step);
  }

  recordStep(compiled: ExecutableStep, feed: StepFeed, step: Step): void {
    if (!this.options.recorder) return;
    for (const { range } of touches(step.action)) this.record(compiled, feed.step, step.id, range);
  }

  submit(encoder: GPUCommandEncoder): void {
    this.open.device.queue.submit([encoder.finish()]);
    this.submits++;
  }

  encoder(): GPUCommandEncoder {
    return this.open.device.createCommandEncoder();
  }

  feed(compiled: ExecutableStep, action: ActionOf<'feed'>, feed: StepFeed): void {
    const control = new ArrayBuffer(action.control.bytes);
    new Float32Array(control)[CONTROL.lrFactor] = feed.lrFactor;
    new Uint32Array(control)[CONTROL.step] = feed.step;
    for (const [i, range] of action.inputs.entries()) this.writeNow(compiled, range, feed.inputs[i], false);
    for (const [i, range] of action.targets.entries()) this.writeNow(compiled, range, feed.targets[i], false);
    this.writeNow(compiled, action.control, new Uint32Array(control), false);
  }

  /** Submits the copy of the control tensor; the returned function then reads it and exchanges the losses. */
  report(compiled: ExecutableStep, step: Step, action: ActionOf<'report'>, feed: StepFeed): () => Promise<StepOutcome> {
    const from = this.slabs.place(compiled, action.control);
    const to = this.slabs.place(compiled, action.staging);
    const encoder = this.encoder();
    encoder.copyBufferToBuffer(from.buffer, from.offset, to.buffer, to.offset, from.size);
    this.submit(encoder);
    this.recordStep(compiled, feed, step);
    return async () => {
      const control = await this.device(
        readMapped(to.buffer, from.size, (mapped) => new Float32Array(mapped.slice().buffer)),
      );
      const said = this.device(exchange(this.mailbox, action.region, reportOf(control, feed)));
      const outcome = outcomeOf(control, await traced(feed.trace, step.id, 'the losses of all ranks', said));
      feed.trace?.end(step.id);
      return outcome;
    };
  }

  /** Awaits something that the device or a peer has to do; a lost device or an error of its own ends the wait. */
  device<T>(work: Promise<T>): Promise<T> {
    return this.open.guard(work);
  }

  /** A download slot for reads between steps. */
  private downloadStaging(): PlacedRange {
    const step = this.run.steps[0];
    const slots = step.schedule.tensors.filter((t) => t.space === 'download' && t.bytes > 0);
    const largest = slots.reduce((a, b) => (b.bytes > a.bytes ? b : a));
    return this.slabs.place(step, { tensor: largest.id, offsetBytes: 0, bytes: largest.bytes - (largest.bytes % 4) });
  }

  private writeNow(
    step: ExecutableStep,
    range: Range,
    data: Float32Array<ArrayBuffer> | Uint32Array<ArrayBuffer>,
    setUp = true,
  ): void {
    const { buffer, offset } = this.slabs.place(step, range);
    this.open.device.queue.writeBuffer(buffer, offset, assertUnshared(data));
    if (setUp) this.record(step, 0, SET_UP, range);
  }

  private stateRange(name: string, offsetBytes: number, bytes?: number): { step: ExecutableStep; range: Range } {
    for (const step of this.run.steps) {
      const tensor = step.schedule.tensors.find((t) => t.state && t.name === name);
      if (!tensor) continue;
      if (bytes !== undefined) return { step, range: storedRange(tensor, offsetBytes, bytes) };
      return { step, range: { tensor: tensor.id, offsetBytes, bytes: tensor.bytes } };
    }
    throw new StudioError('internal', `no tensor ${name} is kept from step to step`);
  }

  private record(compiled: ExecutableStep, iteration: number, step: number, range: Range): void {
    if (!this.options.recorder || isHost(compiled, range)) return;
    const { slab, offset, size } = this.slabs.place(compiled, range);
    const tensor = compiled.schedule.tensors[range.tensor];
    this.options.recorder.touch(iteration, step, tensor, { buffer: slab, offsetBytes: offset, bytes: size });
  }
}

function isHost(step: ExecutableStep, range: Range): boolean {
  return step.schedule.tensors[range.tensor].space === 'host';
}
