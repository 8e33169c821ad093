import type { Mailbox } from '../comm/mailbox.ts';
import { readAgain } from '../comm/read-again.ts';
import { SimulatedLink } from '../comm/simulated-link.ts';
import { StudioError } from '../errors.ts';
import type { HostTensors } from '../interpret/host-tensors.ts';
import type { ExecutableStep } from '../schedule/compile.ts';
import type { StepFeed } from '../schedule/rank-engine.ts';
import type { Action, HostCopy, Range, Step } from '../schedule/schedule.ts';
import { type StepTrace, traced } from '../schedule/step-trace.ts';
import type { MappedTensors } from './mapped-tensors.ts';
import type { Slabs } from './slabs.ts';
import { DownloadSlot, type MappedView, readMapped, UploadSlot } from './staging.ts';

export interface CopyOptions {
  /** How bytes move between mapped staging and the peers' memory; on this thread if left out. */
  readonly copy?: Copy;
  /** How mapped staging is seen; as ranges if left out. */
  readonly view?: MappedView;
}

/** Copies all of source to target, which is as long; both stay where they are until it resolves. */
export type Copy = (target: Uint8Array<ArrayBuffer>, source: Uint8Array<ArrayBuffer>) => Promise<void>;

const copyHere: Copy = async (target, source) => target.set(source);

export type ActionOf<T extends Action['type']> = Extract<Action, { type: T }>;

/** What copies ask of the engine. */
export interface CopyEngine {
  encoder(): GPUCommandEncoder;
  encodeDispatches(encoder: GPUCommandEncoder, feed: StepFeed, steps: readonly Step[]): void;
  submit(encoder: GPUCommandEncoder): void;
  recordStep(compiled: ExecutableStep, feed: StepFeed, step: Step): void;
  device<T>(work: Promise<T>): Promise<T>;
}

/** The copies of a rank's steps, between its device, its host and its peers, and the staging slots that they take turns in. */
export class Copies {
  private readonly uploadSlots = new Map<GPUBuffer, UploadSlot>();
  private readonly downloadSlots = new Map<GPUBuffer, DownloadSlot>();
  private readonly copy: Copy;
  /** Copies under way: what they read and write must stay mapped, whatever else has failed. */
  private readonly copying = new Set<Promise<void>>();
  private closed = false;
  private readonly link = new SimulatedLink();

  constructor(
    private readonly engine: CopyEngine,
    private readonly slabs: Slabs,
    private readonly host: HostTensors,
    private readonly mapped: MappedTensors,
    private readonly mailbox: Mailbox,
    private readonly options: CopyOptions,
  ) {
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
  }

  /** From here on none begins. */
  close(): void {
    this.closed = true;
  }

  /** Resolves when those under way have ended, however they did. */
  ended(): Promise<unknown> {
    return Promise.allSettled(this.copying);
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
      const encoder = this.engine.encoder();
      if (action.pack) this.engine.encodeDispatches(encoder, feed, [step]);
      else this.engine.recordStep(compiled, feed, step);
      encoder.copyBufferToBuffer(from.buffer, from.offset, to.buffer, to.offset, from.size);
      this.engine.submit(encoder);
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
    const allRead = this.engine.device(this.mailbox.beginWrite(region));
    await traced(trace, step.id, 'the peers, to have read what was there', allRead);
    const outbox = this.mailbox.outbox(region).subarray(0, bytes);
    await this.engine.device(readMapped(staging, bytes, (mapped) => this.copy(outbox, mapped), this.options.view));
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
    const mapped = await traced(feed.trace, step.id, 'its staging slot', this.engine.device(slot.open(bytes)));
    const filled = this.fillFromPeers(compiled, step, action, mapped, feed.trace);
    const submitted = Promise.all([filled, before]).then(() => {
      slot.seal();
      const to = this.slabs.place(compiled, action.received);
      const encoder = this.engine.encoder();
      encoder.copyBufferToBuffer(staging.buffer, staging.offset, to.buffer, to.offset, bytes);
      this.engine.encodeDispatches(encoder, feed, [step]);
      this.engine.submit(encoder);
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
      await traced(trace, step.id, `rank ${peer}`, this.engine.device(this.mailbox.arrived(region, peer)));
      const from = inboxOffsets[i];
      const arrived = this.mailbox.inbox(region, peer).subarray(from, from + bytesPerPeer);
      await this.engine.device(this.copy(place(own && i >= own.slot ? i + 1 : i), arrived));
      this.mailbox.consumed(region, peer);
      await this.engine.device(readAgain(this.mailbox, region, peer, extraReads));
    });
    if (own) copies.push(this.copyFromHost(place(own.slot), compiled, own.part));
    await allSettled(copies);
    if (linkGBps !== null) await this.link.pass(mapped.byteLength, linkGBps);
  }

  /** Lets the peers read what this rank keeps on the host. */
  announce(action: ActionOf<'announce'>): Promise<void> {
    return this.engine.device(this.host.announce(action.region));
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
    const mapped = await traced(feed.trace, step.id, 'its staging slot', this.engine.device(slot.open(staging.size)));
    const parts = placedInTurn(action.parts);
    const copies = parts.map(({ at, host }) => this.copyFromHost(mapped.subarray(at, at + host.bytes), compiled, host));
    const submitted = Promise.all([allSettled(copies), before]).then(() => {
      slot.seal();
      const encoder = this.engine.encoder();
      for (const { at, device } of parts) {
        const to = this.slabs.place(compiled, device);
        encoder.copyBufferToBuffer(staging.buffer, staging.offset + at, to.buffer, to.offset, to.size);
      }
      this.engine.submit(encoder);
      this.engine.recordStep(compiled, feed, step);
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
      const encoder = this.engine.encoder();
      for (const { at, device } of parts) {
        const from = this.slabs.place(compiled, device);
        encoder.copyBufferToBuffer(from.buffer, from.offset, staging.buffer, staging.offset + at, from.size);
      }
      this.engine.submit(encoder);
      this.engine.recordStep(compiled, feed, step);
    });
    const copyOut = async (mapped: Uint8Array<ArrayBuffer>) => {
      const copies = parts.map(async ({ at, host }) =>
        this.copy(await this.host.write(compiled, host), mapped.subarray(at, at + host.bytes)),
      );
      await allSettled(copies);
    };
    const done = submitted.then(() =>
      this.engine.device(readMapped(staging.buffer, staging.size, copyOut, this.options.view)),
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
    await traced(feed.trace, step.id, 'the copy before it to the same place', this.engine.device(kept.bytes()));
    const submitted = before.then(() =>
      kept.fill((buffer) => {
        const encoder = this.engine.encoder();
        for (const { at, device } of placedInTurn(parts)) {
          const from = this.slabs.place(compiled, device);
          encoder.copyBufferToBuffer(from.buffer, from.offset, buffer, at, from.size);
        }
        this.engine.submit(encoder);
        this.engine.recordStep(compiled, feed, step);
      }),
    );
    return { submitted, done: submitted };
  }

  /** A host range's bytes, piece after piece; to write them, once no peer reads them. */
  async hostBytes(
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
    const copies = (await this.engine.device(this.hostBytes(step, range, 'read'))).map((piece) => {
      const into = target.subarray(at, at + piece.byteLength);
      at += piece.byteLength;
      return this.engine.device(this.copy(into, piece));
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
}

/** A copy that has begun. Its commands are submitted after those of the copies of its lane that began before it. */
export interface UnderWay {
  readonly submitted: Promise<void>;
  readonly done: Promise<void>;
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
