import { exchange } from '../comm/exchange.ts';
import type { Mailbox } from '../comm/mailbox.ts';
import { readAgain } from '../comm/read-again.ts';
import { SimulatedLink } from '../comm/simulated-link.ts';
import { StudioError } from '../errors.ts';
import { HostTensors } from '../interpret/host-tensors.ts';
import { outcomeOf, reportOf } from '../interpret/outcome.ts';
import { CONTROL } from '../ops/control.ts';
import type { Kernel, Params } from '../ops/kernel.ts';
import type { ExecutableRun, ExecutableStep } from '../schedule/compile.ts';
import { liveBytes, sumCategories } from '../schedule/memory.ts';
import type { MeasuredMemory, RankEngine, StepFeed, StepOutcome } from '../schedule/rank-engine.ts';
import { type Recorder, SET_UP } from '../schedule/recorder.ts';
import { type Action, type HostCopy, type Lane, type Range, type Step, touches } from '../schedule/schedule.ts';
import { StepTrace, traced } from '../schedule/step-trace.ts';
import { asStored, fromStored, storedRange } from '../schedule/stored-floats.ts';
import { BufferLedger } from './buffer-ledger.ts';
import { Completions } from './completions.ts';
import type { OpenDevice } from './device.ts';
import { GpuStepTrace } from './gpu-step-trace.ts';
import { dispatchOnce, prepareInitialValues } from './initial-values.ts';
import { MappedTensors } from './mapped-tensors.ts';
import { type PreparedDispatch, prepareDispatches } from './prepare.ts';
import { type PlacedRange, Slabs } from './slabs.ts';
import { DownloadSlot, type MappedView, readMapped, UploadSlot } from './staging.ts';
import { assertUnshared } from './unshared.ts';

export interface ExecutorOptions {
  /** Files every binding and copy, to measure memory. */
  readonly recorder?: Recorder;
  /** How bytes move between mapped staging and the peers' memory; on this thread if left out. */
  readonly copy?: Copy;
  /** How mapped staging is seen; as ranges if left out. */
  readonly view?: MappedView;
  /** How long a step of training may go on with nothing done in any lane, in ms: longer than any wait for a peer. */
  readonly stallMs?: number;
}

/** A minute more than a rank waits for a peer. */
const STALL_MS = 660_000;

/** Copies all of source to target, which is as long; both stay where they are until it resolves. */
export type Copy = (target: Uint8Array<ArrayBuffer>, source: Uint8Array<ArrayBuffer>) => Promise<void>;

const copyHere: Copy = async (target, source) => target.set(source);

type ActionOf<T extends Action['type']> = Extract<Action, { type: T }>;

/**
 * Runs one rank's schedule on a GPU. Each lane is one async loop over its own steps; it waits where the schedule says so
 * and decides nothing. Everything is made before step 0: buffers, pipelines, bind groups, uniforms.
 */
export class Executor implements RankEngine {
  /** Command buffers submitted since the last step began. */
  submits = 0;
  private readonly uploadSlots = new Map<GPUBuffer, UploadSlot>();
  private readonly downloadSlots = new Map<GPUBuffer, DownloadSlot>();
  private readonly copy: Copy;
  /** Copies under way: what they read and write must stay mapped, whatever else has failed. */
  private readonly copying = new Set<Promise<void>>();
  private closed = false;
  private readonly peak: Pick<MeasuredMemory, 'liveBytes' | 'byCategory'>;
  private readonly host: HostTensors;
  private readonly link = new SimulatedLink();
  private hostLane: Promise<void> = Promise.resolve();
  private lastOutcome: Promise<unknown> = Promise.resolve();
  private lastRead: Promise<unknown> = Promise.resolve();

  private constructor(
    private readonly run: ExecutableRun,
    private readonly open: OpenDevice,
    private readonly ledger: BufferLedger,
    private readonly slabs: Slabs,
    private readonly mapped: MappedTensors,
    private readonly prepared: readonly (readonly PreparedDispatch[][])[],
    private readonly mailbox: Mailbox,
    private readonly options: ExecutorOptions,
  ) {
    this.host = new HostTensors(run, mailbox, false);
    const copy = options.copy ?? copyHere;
    this.copy = async (target, source) => {
      if (this.closed) throw new StudioError('internal', 'a copy was to begin after the engine was closed');
      const copying = copy(target, source);
      this.copying.add(copying);
      try {
        await copying;
      } finally {
        this.copying.delete(copying);
      }
    };
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
      for (const piece of await this.device(this.hostBytes(step, range, 'write'))) piece.fill(0);
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
      for (const piece of await this.device(this.hostBytes(step, range, 'write'))) {
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
      for (const piece of await this.device(this.hostBytes(step, range, 'read'))) {
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
    this.closed = true;
    this.mailbox.close();
    await Promise.allSettled(this.copying);
    this.ledger.destroyAll();
    this.open.device.queue.submit([]);
  }

  /** What follows is for the lanes of a TrainingStep. */
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

  /** Begins a publication as soon as its download slot is free; it is done when the peers can read it. */
  async publish(
    compiled: ExecutableStep,
    step: Step,
    action: ActionOf<'publish'>,
    feed: StepFeed,
    before: Promise<void>,
  ): Promise<UnderWay> {
    const from = this.slabs.place(compiled, action.source);
    const to = this.slabs.place(compiled, action.staging);
    const slot = this.downloadSlot(to.buffer);
    await traced(feed.trace, step.id, 'its staging slot', slot.free());
    const submitted = before.then(() => {
      const encoder = this.encoder();
      if (action.pack) this.encodeDispatches(encoder, feed, [step]);
      else this.recordStep(compiled, feed, step);
      encoder.copyBufferToBuffer(from.buffer, from.offset, to.buffer, to.offset, from.size);
      this.submit(encoder);
    });
    const done = submitted.then(() => this.handOver(step, action.region, to.buffer, from.size, feed.trace));
    slot.hold(done);
    return { submitted, done };
  }

  private async handOver(
    step: Step,
    region: number,
    staging: GPUBuffer,
    bytes: number,
    trace: StepTrace | undefined,
  ): Promise<void> {
    const allRead = this.device(this.mailbox.beginWrite(region));
    await traced(trace, step.id, 'the peers, to have read what was there', allRead);
    const outbox = this.mailbox.outbox(region).subarray(0, bytes);
    await this.device(readMapped(staging, bytes, (mapped) => this.copy(outbox, mapped), this.options.view));
    this.mailbox.publish(region);
  }

  /** Begins to take what the peers publish as soon as its upload slot is free; it is done when it is submitted. */
  async collect(
    compiled: ExecutableStep,
    step: Step,
    action: ActionOf<'collect'>,
    feed: StepFeed,
    before: Promise<void>,
  ): Promise<UnderWay> {
    const staging = this.slabs.place(compiled, action.staging);
    const slot = this.uploadSlot(staging.buffer);
    const bytes = action.bytesPerPeer * (action.peers.length + (action.own ? 1 : 0));
    const mapped = await traced(feed.trace, step.id, 'its staging slot', this.device(slot.open(bytes)));
    const filled = this.fillFromPeers(compiled, step, action, mapped, feed.trace);
    const submitted = Promise.all([filled, before]).then(() => {
      slot.seal();
      const to = this.slabs.place(compiled, action.received);
      const encoder = this.encoder();
      encoder.copyBufferToBuffer(staging.buffer, staging.offset, to.buffer, to.offset, bytes);
      this.encodeDispatches(encoder, feed, [step]);
      this.submit(encoder);
      slot.reopen();
    });
    return { submitted, done: submitted };
  }

  /** The peers' bytes, and with offload this rank's own, to a mapped slot, in rank order. */
  private async fillFromPeers(
    compiled: ExecutableStep,
    step: Step,
    { region, bytesPerPeer, peers, inboxOffsets, own, extraReads, linkGBps }: ActionOf<'collect'>,
    mapped: Uint8Array<ArrayBuffer>,
    trace: StepTrace | undefined,
  ): Promise<void> {
    const place = (index: number) => mapped.subarray(index * bytesPerPeer, (index + 1) * bytesPerPeer);
    const copies = peers.map(async (peer, i) => {
      await traced(trace, step.id, `rank ${peer}`, this.device(this.mailbox.arrived(region, peer)));
      const from = inboxOffsets[i];
      const arrived = this.mailbox.inbox(region, peer).subarray(from, from + bytesPerPeer);
      await this.device(this.copy(place(own && i >= own.slot ? i + 1 : i), arrived));
      this.mailbox.consumed(region, peer);
      await this.device(readAgain(this.mailbox, region, peer, extraReads));
    });
    if (own) copies.push(this.copyFromHost(place(own.slot), compiled, own.part));
    await allSettled(copies);
    if (linkGBps !== null) await this.link.pass(mapped.byteLength, linkGBps);
  }

  /** Lets the peers read what this rank keeps on the host. */
  announce(action: ActionOf<'announce'>): Promise<void> {
    return this.device(this.host.announce(action.region));
  }

  /** Begins a copy of host tensors to the device as soon as its upload slot is free; it is done when it is submitted. */
  async fetch(
    compiled: ExecutableStep,
    step: Step,
    action: ActionOf<'fetch'>,
    feed: StepFeed,
    before: Promise<void>,
  ): Promise<UnderWay> {
    const staging = this.slabs.place(compiled, action.staging);
    const slot = this.uploadSlot(staging.buffer);
    const mapped = await traced(feed.trace, step.id, 'its staging slot', this.device(slot.open(staging.size)));
    const parts = placedInTurn(action.parts);
    const copies = parts.map(({ at, host }) => this.copyFromHost(mapped.subarray(at, at + host.bytes), compiled, host));
    const submitted = Promise.all([allSettled(copies), before]).then(() => {
      slot.seal();
      const encoder = this.encoder();
      for (const { at, device } of parts) {
        const to = this.slabs.place(compiled, device);
        encoder.copyBufferToBuffer(staging.buffer, staging.offset + at, to.buffer, to.offset, to.size);
      }
      this.submit(encoder);
      this.recordStep(compiled, feed, step);
      slot.reopen();
    });
    return { submitted, done: submitted };
  }

  /** Begins a copy of device tensors to the host as soon as its download slot is free; it is done when the host has them. */
  async store(
    compiled: ExecutableStep,
    step: Step,
    action: ActionOf<'store'>,
    feed: StepFeed,
    before: Promise<void>,
  ): Promise<UnderWay> {
    const staging = this.slabs.place(compiled, action.staging);
    const slot = this.downloadSlot(staging.buffer);
    await traced(feed.trace, step.id, 'its staging slot', slot.free());
    const parts = placedInTurn(action.parts);
    const submitted = before.then(() => {
      const encoder = this.encoder();
      for (const { at, device } of parts) {
        const from = this.slabs.place(compiled, device);
        encoder.copyBufferToBuffer(from.buffer, from.offset, staging.buffer, staging.offset + at, from.size);
      }
      this.submit(encoder);
      this.recordStep(compiled, feed, step);
    });
    const copyOut = async (mapped: Uint8Array<ArrayBuffer>) => {
      const copies = parts.map(async ({ at, host }) =>
        this.copy(await this.host.write(compiled, host), mapped.subarray(at, at + host.bytes)),
      );
      await allSettled(copies);
    };
    const done = submitted.then(() =>
      this.device(readMapped(staging.buffer, staging.size, copyOut, this.options.view)),
    );
    slot.hold(done);
    return { submitted, done };
  }

  /** Begins to have the device copy tensors to where the host keeps them; it is done when it is submitted. */
  async keep(
    compiled: ExecutableStep,
    step: Step,
    { parts }: ActionOf<'keep'>,
    feed: StepFeed,
    before: Promise<void>,
  ): Promise<UnderWay> {
    const kept = this.mapped.bufferOf(compiled, parts);
    await traced(feed.trace, step.id, 'the copy before it to the same place', this.device(kept.bytes()));
    const submitted = before.then(() =>
      kept.fill((buffer) => {
        const encoder = this.encoder();
        for (const { at, device } of placedInTurn(parts)) {
          const from = this.slabs.place(compiled, device);
          encoder.copyBufferToBuffer(from.buffer, from.offset, buffer, at, from.size);
        }
        this.submit(encoder);
        this.recordStep(compiled, feed, step);
      }),
    );
    return { submitted, done: submitted };
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

  /** A host range's bytes, piece after piece; to write them, once no peer reads them. */
  private async hostBytes(
    step: ExecutableStep,
    range: Range,
    access: 'read' | 'write',
  ): Promise<readonly Uint8Array<ArrayBuffer>[]> {
    if (step.schedule.tensors[range.tensor].mapped) return this.mapped.bytes(step, range);
    return [access === 'read' ? this.host.read(step, range) : await this.host.write(step, range)];
  }

  /** Copies a host range to target, which is as long. */
  private async copyFromHost(target: Uint8Array<ArrayBuffer>, step: ExecutableStep, range: Range): Promise<void> {
    let at = 0;
    const copies = (await this.device(this.hostBytes(step, range, 'read'))).map((piece) => {
      const into = target.subarray(at, at + piece.byteLength);
      at += piece.byteLength;
      return this.device(this.copy(into, piece));
    });
    await allSettled(copies);
  }

  private uploadSlot(buffer: GPUBuffer): UploadSlot {
    let slot = this.uploadSlots.get(buffer);
    if (!slot) {
      slot = new UploadSlot(buffer, this.options.view);
      this.uploadSlots.set(buffer, slot);
    }
    return slot;
  }

  private downloadSlot(buffer: GPUBuffer): DownloadSlot {
    let slot = this.downloadSlots.get(buffer);
    if (!slot) {
      slot = new DownloadSlot();
      this.downloadSlots.set(buffer, slot);
    }
    return slot;
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

/** A copy that has begun. Its commands are submitted after those of the copies of its lane that began before it. */
interface UnderWay {
  readonly submitted: Promise<void>;
  readonly done: Promise<void>;
}

/** A copy may fail when another's failure has ended its lane already, and nobody asks any more. */
function heard({ submitted, done }: UnderWay): void {
  submitted.catch(() => undefined);
  done.catch(() => undefined);
}

/** The parts of a copy, one after the other in its staging slot. */
function placedInTurn(parts: readonly HostCopy[]): (HostCopy & { readonly at: number })[] {
  let at = 0;
  return parts.map((part) => {
    const placed = { ...part, at };
    at += part.device.bytes;
    return placed;
  });
}

/** Waits for all of them, so that none still copies when one has failed; then rejects as the first that did. */
async function allSettled(copies: readonly Promise<void>[]): Promise<void> {
  await Promise.allSettled(copies);
  await Promise.all(copies);
}

function isHost(step: ExecutableStep, range: Range): boolean {
  return step.schedule.tensors[range.tensor].space === 'host';
}

/** The copies under way that bring to the host what a fetch reads. */
function storesInto({ action }: Step, underWay: ReadonlyMap<Step, Promise<void>>): Promise<void>[] {
  if (action.type !== 'fetch') return [];
  const read = action.parts.map(({ host }) => host);
  return [...underWay].flatMap(([{ action: other }, ended]) => {
    const overlaps = (a: Range, b: Range) =>
      a.tensor === b.tensor && a.offsetBytes < b.offsetBytes + b.bytes && b.offsetBytes < a.offsetBytes + a.bytes;
    const stores = other.type === 'store' || other.type === 'keep';
    return stores && other.parts.some(({ host }) => read.some((r) => overlaps(r, host))) ? [ended] : [];
  });
}

/** One step of training in flight: its three lanes. */
class TrainingStep {
  private readonly compiled: ExecutableStep;
  private readonly done: Completions;
  /** Where each lane is, and when any of them last got on. */
  private readonly at = new Map<Lane, Step>();
  private progressMs = performance.now();

  constructor(
    private readonly executor: Executor,
    private readonly feed: StepFeed,
    private readonly stallMs: number,
  ) {
    this.compiled = executor.compiled(feed);
    this.done = new Completions(this.compiled.schedule.steps);
  }

  run(hostLaneBefore: Promise<void>, outcomeBefore: Promise<unknown>) {
    let readReport: (() => Promise<StepOutcome>) | null = null;
    const guarded = async (lane: Promise<void>) => {
      try {
        await lane;
      } catch (error) {
        this.done.fail(error);
        throw error;
      }
    };
    const host = guarded(
      hostLaneBefore.then(() =>
        this.copies('host', async (step) => {
          const { action } = step;
          if (action.type === 'report') {
            // Its staging slot is free once the report before has been read.
            await outcomeBefore;
            readReport = this.executor.report(this.compiled, step, action, this.feed);
          } else if (action.type === 'feed') {
            this.executor.feed(this.compiled, action, this.feed);
            this.executor.recordStep(this.compiled, this.feed, step);
          } else if (action.type === 'announce') await this.executor.announce(action);
        }),
      ),
    );
    const lanes = Promise.all([host, guarded(this.compute()), guarded(this.copies('comm'))]);
    const watch = setInterval(() => this.failIfStalled(), Math.min(this.stallMs / 4, 5000));
    const submitted = lanes.then(() => undefined).finally(() => clearInterval(watch));
    const outcome = submitted.then(() => {
      if (!readReport) throw new StudioError('internal', 'the schedule has no report step');
      return readReport();
    });
    submitted.catch(() => undefined);
    outcome.catch(() => undefined);
    const hostLane = host.catch(() => undefined);
    return { submitted, outcome, hostLane };
  }

  /**
   * A lane of copies, as many under way at once as have staging slots. What they submit keeps the lane's order; a step that
   * is no copy runs by itself, when those before it are done.
   */
  private async copies(lane: Lane, alone: (step: Step) => Promise<void> = async () => undefined): Promise<void> {
    let before = Promise.resolve();
    const underWay = new Map<Step, Promise<void>>();
    const end = (steps: Iterable<Promise<void>>) => this.done.orFailure(Promise.all(steps));
    for (const step of this.stepsOf(lane)) {
      await this.ready(step);
      const copy = this.begin(step, before, () => end(storesInto(step, underWay)));
      if (!copy) {
        await end(underWay.values());
        await this.done.orFailure(alone(step));
        this.mark(step);
        continue;
      }
      copy.then(heard, () => undefined);
      const { submitted, done } = await this.done.orFailure(copy);
      before = submitted;
      // What these read on the device may be taken once their commands are submitted: the queue keeps their order. Who reads
      // what they bring to the host waits for the peer's word, or for the store itself.
      if (step.action.type === 'publish' || step.action.type === 'store')
        submitted.then(
          () => this.markDone(step),
          () => undefined,
        );
      const ended = done.then(() => this.mark(step));
      underWay.set(step, ended);
      // What follows may wait for this very step: its failure must end that wait.
      ended.then(
        () => underWay.delete(step),
        (error) => this.done.fail(error),
      );
    }
    await end(underWay.values());
  }

  /** Begins a step that copies once `read` has resolved where it reads host tensors; undefined for any other step. */
  private begin(step: Step, before: Promise<void>, read: () => Promise<unknown>): Promise<UnderWay> | undefined {
    const { action } = step;
    const { executor, compiled, feed } = this;
    if (action.type === 'publish') return executor.publish(compiled, step, action, feed, before);
    if (action.type === 'collect') return executor.collect(compiled, step, action, feed, before);
    if (action.type === 'store') return executor.store(compiled, step, action, feed, before);
    if (action.type === 'keep') return executor.keep(compiled, step, action, feed, before);
    if (action.type === 'fetch') return read().then(() => executor.fetch(compiled, step, action, feed, before));
    return undefined;
  }

  /** Visit by visit: wait for all that the visit needs, encode it, submit it once. */
  private async compute(): Promise<void> {
    const steps = this.stepsOf('compute');
    for (let i = 0; i < steps.length; ) {
      const visit: Step[] = [];
      for (const { visit: number } = steps[i]; i < steps.length && steps[i].visit === number; i++) visit.push(steps[i]);
      for (const step of visit) await this.ready(step);
      const { trace } = this.feed;
      if (trace) await this.executor.submitTraced(this.feed, visit, trace);
      else {
        const encoder = this.executor.encoder();
        this.executor.encodeDispatches(encoder, this.feed, visit);
        this.executor.submit(encoder);
      }
      for (const step of visit) this.markDone(step);
    }
  }

  /** Waits for the steps that the schedule names. */
  private async ready(step: Step): Promise<void> {
    this.at.set(step.lane, step);
    const { trace } = this.feed;
    if (!trace) return this.done.all(step.waits);
    for (const other of step.waits) await trace.waiting(step.id, other, this.done.all([other]));
    trace.begin(step.id);
  }

  private mark(step: Step): void {
    this.feed.trace?.end(step.id);
    this.markDone(step);
  }

  private markDone(step: Step): void {
    this.progressMs = performance.now();
    this.done.mark(step.id);
  }

  /** A wait that no peer's time limit ends is a mistake of the plan or of ours: it says where each lane stands. */
  private failIfStalled(): void {
    if (performance.now() - this.progressMs < this.stallMs) return;
    const { steps } = this.compiled.schedule;
    const name = ({ id, label, unit }: Step) => `step ${id} (${label} of ${unit})`;
    const lanes = [...this.at].map(([lane, step]) => {
      const missing = this.done.missing(step.waits).map((id) => name(steps[id]));
      return `${lane} at ${name(step)}${missing.length ? `, which waits for ${missing.join(' and ')}` : ''}`;
    });
    this.done.fail(
      new StudioError(
        'timeout',
        `Nothing of step ${this.feed.step} has got on for ${this.stallMs} ms: ${lanes.join('; ')}. Please report this.`,
        { step: this.feed.step },
      ),
    );
  }

  private stepsOf(lane: Lane): Step[] {
    return this.compiled.schedule.steps.filter((step) => step.lane === lane);
  }
}
