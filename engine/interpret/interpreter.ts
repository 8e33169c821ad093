import { exchange } from '../comm/exchange.ts';
import type { Mailbox } from '../comm/mailbox.ts';
import { readAgain } from '../comm/read-again.ts';
import { SimulatedLink } from '../comm/simulated-link.ts';
import { StudioError } from '../errors.ts';
import { CONTROL } from '../ops/control.ts';
import type { DType, Kernel, Params, View } from '../ops/kernel.ts';
import type { CompiledRun, CompiledStep } from '../schedule/compile.ts';
import { liveBytes, sumCategories } from '../schedule/memory.ts';
import type { MeasuredMemory, RankEngine, StepFeed, StepOutcome } from '../schedule/rank-engine.ts';
import { type Recorder, SET_UP } from '../schedule/recorder.ts';
import type { Dispatch, Range, Step } from '../schedule/schedule.ts';
import { touches } from '../schedule/schedule.ts';
import { StepTrace, traced } from '../schedule/step-trace.ts';
import { asStored, fromStored, storedRange } from '../schedule/stored-floats.ts';
import { HostTensors } from './host-tensors.ts';
import { outcomeOf, reportOf } from './outcome.ts';

/** How long it computes before the process may do something else. */
const MAX_BUSY_MS = 10;

export interface InterpreterOptions {
  /** Files every touch, to measure memory. */
  readonly recorder?: Recorder;
  /** Fills what is freed with NaN, so that a use after it shows in the numbers. */
  readonly poison?: boolean;
}

/**
 * Runs one rank's schedule in plain TypeScript, step by step in listed order: the oracle of every kernel. It keeps to the
 * memory plan as a GPU does: tensors are views at their planned offsets of the planned slabs.
 */
export class Interpreter implements RankEngine {
  private readonly host: HostTensors;
  private readonly link = new SimulatedLink();
  private allocRetries = 0;
  private readonly slabs: ArrayBuffer[];
  private gaveWayAtMs = performance.now();
  private readonly peak: { liveBytes: number; byCategory: MeasuredMemory['byCategory'] };

  constructor(
    private readonly run: CompiledRun,
    private readonly mailbox: Mailbox,
    private readonly options: InterpreterOptions = {},
  ) {
    this.host = new HostTensors(run, mailbox, true);
    this.slabs = run.memory.slabs.map((slab) => new ArrayBuffer(slab.bytes));
    for (const step of run.steps)
      for (const { id, contents } of step.schedule.tensors)
        if (contents) {
          this.view(step, { tensor: id, offsetBytes: 0, bytes: contents.byteLength }, 'u32').set(
            new Uint32Array(contents.buffer, contents.byteOffset, contents.length),
          );
          this.record(step, 0, SET_UP, { tensor: id, offsetBytes: 0, bytes: contents.byteLength });
        }
    const live = run.steps.flatMap((step) => liveBytes(step.schedule));
    const byCategory = live.reduce((a, b) => (sumCategories(b) > sumCategories(a) ? b : a));
    this.peak = { liveBytes: sumCategories(byCategory), byCategory };
  }

  async write(
    tensor: string,
    offsetBytes: number,
    data: Float32Array<ArrayBuffer> | Uint32Array<ArrayBuffer>,
  ): Promise<void> {
    const { step, range } = this.stateRange(tensor, offsetBytes, data.byteLength);
    const stored = asStored(step.schedule.tensors[range.tensor], offsetBytes, data);
    if (isHost(step, range)) {
      const bytes = new Uint8Array(stored.buffer, stored.byteOffset, stored.byteLength);
      (await this.host.write(step, range)).set(bytes);
      return;
    }
    this.view(step, range, stored instanceof Float32Array ? 'f32' : 'u32').set(stored);
    this.record(step, 0, SET_UP, range);
  }

  async clear(tensor: string): Promise<void> {
    const { step, range } = this.stateRange(tensor, 0, 0);
    const whole = { ...range, bytes: step.schedule.tensors[range.tensor].bytes };
    if (isHost(step, whole)) {
      (await this.host.write(step, whole)).fill(0);
      return;
    }
    this.view(step, whole, 'u32').fill(0);
    this.record(step, 0, SET_UP, whole);
  }

  async make(kernel: Kernel, tensors: readonly string[], params: Params): Promise<void> {
    const places = tensors.map((tensor) => this.stateRange(tensor, 0, 0));
    const operands = places.map(({ step, range }) => ({ ...range, bytes: step.schedule.tensors[range.tensor].bytes }));
    this.dispatch(places[0].step, { kernel, operands, params, tiled: false });
    for (const range of operands) this.record(places[0].step, 0, SET_UP, range);
  }

  async read(tensor: string, offsetBytes: number, bytes: number): Promise<Float32Array<ArrayBuffer>> {
    const { step, range } = this.stateRange(tensor, offsetBytes, bytes);
    const words = isHost(step, range)
      ? new Float32Array(this.host.read(step, range).slice().buffer)
      : (this.view(step, range, 'f32') as Float32Array<ArrayBuffer>).slice();
    return fromStored(step.schedule.tensors[range.tensor], offsetBytes, bytes, words);
  }

  start(feed: StepFeed): { submitted: Promise<void>; outcome: Promise<StepOutcome> } {
    if (feed.shapeIndex !== this.run.evaluation) this.allocRetries += this.run.slotWaits;
    const outcome = this.runStep(feed);
    return { submitted: outcome.then(() => undefined), outcome };
  }

  async trace(): Promise<StepTrace> {
    return new StepTrace();
  }

  memory(): MeasuredMemory {
    const { reservedBytes } = this.run.memory;
    const hostBytes = this.host.bytes();
    return {
      currentBytes: reservedBytes,
      peakBytes: reservedBytes,
      ...this.peak,
      hostBytes,
      allocRetries: this.allocRetries,
      ooms: 0,
    };
  }

  async close(): Promise<void> {
    this.mailbox.close();
  }

  private async runStep(feed: StepFeed): Promise<StepOutcome> {
    const compiled = this.run.steps[feed.shapeIndex];
    let outcome: StepOutcome | null = null;
    for (const step of compiled.schedule.steps) {
      for (const { range } of touches(step.action)) this.record(compiled, feed.step, step.id, range);
      feed.trace?.begin(step.id);
      outcome = (await this.runAction(compiled, step, feed)) ?? outcome;
      feed.trace?.end(step.id);
      if (this.options.poison) this.poison(compiled, step.frees);
      await this.giveWay();
    }
    if (!outcome) throw new StudioError('internal', 'the schedule has no report step');
    return outcome;
  }

  /** Waits among ranks of one process are promises only: without this nobody's message, a stop's neither, gets a turn. */
  private async giveWay(): Promise<void> {
    if (performance.now() - this.gaveWayAtMs < MAX_BUSY_MS) return;
    await new Promise((resolve) => setTimeout(resolve, 0));
    this.gaveWayAtMs = performance.now();
  }

  private async runAction(compiled: CompiledStep, { id, action }: Step, feed: StepFeed): Promise<StepOutcome | null> {
    const { mailbox } = this;
    switch (action.type) {
      case 'dispatch':
        this.dispatch(compiled, action.dispatch);
        return null;
      case 'feed': {
        for (const [i, range] of action.inputs.entries()) this.view(compiled, range, 'u32').set(feed.inputs[i]);
        for (const [i, range] of action.targets.entries()) this.view(compiled, range, 'u32').set(feed.targets[i]);
        this.view(compiled, action.control, 'f32')[CONTROL.lrFactor] = feed.lrFactor;
        this.view(compiled, action.control, 'u32')[CONTROL.step] = feed.step;
        return null;
      }
      case 'publish': {
        if (action.pack) this.dispatch(compiled, action.pack);
        const allRead = mailbox.beginWrite(action.region);
        await traced(feed.trace, id, 'the peers, to have read what was there', allRead);
        mailbox.outbox(action.region).set(this.bytes(compiled, action.source));
        mailbox.publish(action.region);
        return null;
      }
      case 'collect': {
        const received = this.bytes(compiled, action.received);
        const { own } = action;
        if (own) received.set(this.host.read(compiled, own.part), own.slot * action.bytesPerPeer);
        for (const [place, peer] of action.peers.entries()) {
          const slot = own && place >= own.slot ? place + 1 : place;
          await traced(feed.trace, id, `rank ${peer}`, mailbox.arrived(action.region, peer));
          const from = action.inboxOffsets[place];
          received.set(
            mailbox.inbox(action.region, peer).subarray(from, from + action.bytesPerPeer),
            slot * action.bytesPerPeer,
          );
          mailbox.consumed(action.region, peer);
          await readAgain(mailbox, action.region, peer, action.extraReads);
        }
        if (action.linkGBps !== null) await this.link.pass(received.length, action.linkGBps);
        for (const dispatch of action.place) this.dispatch(compiled, dispatch);
        return null;
      }
      case 'report': {
        const control = this.view(compiled, action.control, 'f32').slice() as Float32Array<ArrayBuffer>;
        const said = exchange(mailbox, action.region, reportOf(control, feed));
        return outcomeOf(control, await traced(feed.trace, id, 'the losses of all ranks', said));
      }
      case 'announce':
        await this.host.announce(action.region);
        return null;
      case 'fetch':
        for (const { host, device } of action.parts) this.bytes(compiled, device).set(this.host.read(compiled, host));
        return null;
      case 'store':
      case 'keep':
        for (const { host, device } of action.parts)
          (await this.host.write(compiled, host)).set(this.bytes(compiled, device));
        return null;
      case 'free':
        return null;
    }
  }

  private dispatch(compiled: CompiledStep, { kernel, operands, params }: Dispatch): void {
    if (kernel.threads(params) === 0) return;
    kernel.run(
      operands.map((range, i) => this.view(compiled, range, kernel.operands[i].dtype)),
      params,
    );
  }

  private view(compiled: CompiledStep, range: Range, dtype: DType): View {
    const { slab, offsetBytes } = compiled.placements[range.tensor];
    const Type = dtype === 'f32' ? Float32Array : Uint32Array;
    return new Type(this.slabs[slab], offsetBytes + range.offsetBytes, range.bytes / 4);
  }

  private bytes(compiled: CompiledStep, range: Range): Uint8Array<ArrayBuffer> {
    const { slab, offsetBytes } = compiled.placements[range.tensor];
    return new Uint8Array(this.slabs[slab], offsetBytes + range.offsetBytes, range.bytes);
  }

  private stateRange(name: string, offsetBytes: number, bytes: number): { step: CompiledStep; range: Range } {
    for (const step of this.run.steps) {
      const tensor = step.schedule.tensors.find((t) => t.state && t.name === name);
      if (tensor) return { step, range: storedRange(tensor, offsetBytes, bytes) };
    }
    throw new StudioError('internal', `no tensor ${name} is kept from step to step`);
  }

  private record(compiled: CompiledStep, iteration: number, step: number, range: Range): void {
    if (!this.options.recorder || isHost(compiled, range)) return;
    const { slab, offsetBytes } = compiled.placements[range.tensor];
    this.options.recorder.touch(iteration, step, compiled.schedule.tensors[range.tensor], {
      buffer: slab,
      offsetBytes: offsetBytes + range.offsetBytes,
      bytes: range.bytes,
    });
  }

  private poison(compiled: CompiledStep, freed: readonly number[]): void {
    for (const tensor of freed) {
      const { bytes } = compiled.schedule.tensors[tensor];
      (this.view(compiled, { tensor, offsetBytes: 0, bytes: bytes - (bytes % 4) }, 'f32') as Float32Array).fill(
        Number.NaN,
      );
    }
  }
}

function isHost(step: CompiledStep, range: Range): boolean {
  return step.schedule.tensors[range.tensor].space === 'host';
}
