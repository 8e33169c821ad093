import { StudioError } from '../errors.ts';
import type { Kernel } from '../ops/kernel.ts';
import { rowSquareSums } from '../ops/norm/row-square-sums.ts';
import type { AdapterProfile } from './profile.ts';
import { type CopyRates, copyRatesOf, kernelClass } from './rates.ts';
import {
  type Action,
  computeVisits,
  type Dispatch,
  dispatches,
  type Lane,
  type Schedule,
  type Step,
} from './schedule.ts';

/** What time goes into: a kernel's arithmetic or its memory traffic, dispatches, bytes onto and off the device, and a simulated link. */
export const RESOURCES = ['compute', 'memory', 'dispatches', 'uploads', 'downloads', 'link'] as const;
export type Resource = (typeof RESOURCES)[number];

/** Resources as a person reads them. */
export const RESOURCE_WORDS: Readonly<Record<Resource, string>> = {
  compute: 'compute',
  memory: 'memory',
  dispatches: 'dispatches',
  uploads: 'uploads',
  downloads: 'downloads',
  link: 'link',
};
export type SecondsByResource = Readonly<Record<Resource, number>>;

/** When each step of a schedule starts and ends, in seconds from the start of the step of training. */
export interface Timeline {
  readonly startSeconds: readonly number[];
  readonly endSeconds: readonly number[];
  readonly totalSeconds: number;
  /** From its end to that of the step after it, which the host has begun meanwhile. */
  readonly iterationSeconds: number;
  /** What the iteration is made of: along the chain of which each part waits for the one before, to the last to end. */
  readonly critical: SecondsByResource;
}

/**
 * Runs the lanes as the executor does, against the adapter's rates. The host encodes a visit and goes on; the device takes
 * what is submitted in its order, a kernel for the longer of its arithmetic and its memory traffic (Williams et al. 2009,
 * the roofline model). A publication leaves the device, then the download slot; what a rank collects waits for a free
 * upload slot and, since all ranks do the same, for its own publication of that region. `sharing` ranks on one adapter
 * share its rates; copies run at the rates of as many processes as there are ranks. As in training, the host begins the
 * next step once it has submitted this one.
 */
export function estimate(
  { steps, world }: Pick<Schedule, 'steps' | 'world'>,
  profile: AdapterProfile,
  sharing = 1,
): Timeline {
  const first = new Lanes(steps, profile, { device: sharing, host: world });
  first.run();
  const next = new Lanes(steps, profile, { device: sharing, host: world }, first);
  next.run();
  const { startSeconds, endSeconds, last } = first;
  const iterationSeconds = next.last.at - last.at;
  return {
    startSeconds,
    endSeconds,
    totalSeconds: last.at,
    iterationSeconds,
    critical: spentSince(next.last, last.at),
  };
}

/** What the time from then on went into, along the chain that ends with this moment. */
function spentSince(end: Moment, at: number): SecondsByResource {
  const spent = { compute: 0, memory: 0, dispatches: 0, uploads: 0, downloads: 0, link: 0 };
  for (let m: Moment | null = end; m && m.at > at; m = m.before) {
    const whole = m.at - (m.before?.at ?? 0);
    const part = whole > 0 ? Math.min(1, (m.at - at) / whole) : 0;
    for (const resource of RESOURCES) spent[resource] += part * (m.spent[resource] ?? 0);
  }
  return spent;
}

/** The resource that most of the time goes into. */
export function boundBy(seconds: SecondsByResource): Resource {
  return RESOURCES.reduce((a, b) => (seconds[b] > seconds[a] ? b : a));
}

/** A point in time, what the time since `before` went into, and what it had to wait for. */
interface Moment {
  readonly at: number;
  readonly spent: Partial<SecondsByResource>;
  readonly before: Moment | null;
}

/** For how long a GPU serves one of several processes before the next: the driver's default. */
const TURN_SECONDS = 2e-3;

const START: Moment = { at: 0, spent: {}, before: null };

function latest(...moments: readonly (Moment | undefined)[]): Moment {
  return moments.reduce<Moment>((a, b) => (b && b.at > a.at ? b : a), START);
}

function after(before: Moment, spent: Partial<SecondsByResource>): Moment {
  return { at: RESOURCES.reduce((at, resource) => at + (spent[resource] ?? 0), before.at), spent, before };
}

/** What of a lane is done at once: a visit of the compute lane, or a step of another. */
interface Turn {
  readonly lane: Lane;
  readonly steps: readonly Step[];
}

/** What a download slot holds, from when the host may read it. */
interface Leaving {
  readonly step: Step;
  readonly begin: Moment;
  readonly mapped: Moment;
  readonly slot: number;
  readonly bytes: number;
}

class Lanes {
  /** When the host, its copying threads, the device's queue and each lane are free. */
  private host = START;
  private copies = START;
  private device = START;
  private lastKernel: Kernel | null = null;
  private readonly rates: CopyRates;
  /** When the host can begin the next step. */
  private submitted = START;
  private lanes: Partial<Record<Lane, Moment>> = {};
  /** When each step no longer keeps others waiting: for the device's work, once it is submitted. */
  private readonly done: (Moment | undefined)[] = [];
  readonly startSeconds: number[] = [];
  readonly endSeconds: number[] = [];
  /** When each staging slot may be used again. */
  private readonly slots = new Map<number, Moment>();
  /** For each collect, this rank's publication of the region before it, and when peers can read each publication. */
  private readonly publicationOf = new Map<number, number>();
  private readonly published: (Moment | undefined)[] = [];
  /** The end of all that the host lane has copied so far, and what it is still to copy. */
  private copied = START;
  private readonly leaving: Leaving[] = [];
  last = START;

  constructor(
    private readonly steps: Schedule['steps'],
    private readonly profile: AdapterProfile,
    /** How many ranks share the device and the host. */
    private readonly ranks: { readonly device: number; readonly host: number },
    /** The step before, which leaves the device, the threads that copy and the staging slots as they are. */
    before?: Lanes,
  ) {
    this.rates = copyRatesOf(profile.copies, ranks.host);
    if (before) {
      this.host = latest(before.host, before.submitted);
      this.copies = before.copies;
      this.device = before.device;
      this.lastKernel = before.lastKernel;
      this.lanes = { host: before.submitted, comm: before.submitted, compute: before.submitted };
      for (const [slot, free] of before.slots) this.slots.set(slot, free);
    }
    const published = new Map<number, number>();
    for (const { id, action } of steps) {
      if (action.type === 'publish' || action.type === 'announce') published.set(action.region, id);
      const own = action.type === 'collect' ? published.get(action.region) : undefined;
      if (own !== undefined) this.publicationOf.set(id, own);
    }
  }

  /** Takes the turns of all lanes in the order in which what they have for the device is submitted. */
  run(): void {
    const queues = (['host', 'comm', 'compute'] as const).map((lane) => ({
      turns: turnsOf(this.steps, lane),
      next: 0,
    }));
    for (;;) {
      let first: { queue: (typeof queues)[number]; at: number } | null = null;
      for (const queue of queues) {
        const turn = queue.turns[queue.next];
        const at = turn && this.submittedAt(turn);
        if (at !== undefined && (!first || at < first.at)) first = { queue, at };
      }
      const out = this.leaving.reduce<Leaving | null>((a, b) => (a && a.mapped.at <= b.mapped.at ? a : b), null);
      if (out && (!first || Math.max(out.mapped.at, this.copies.at) <= first.at)) {
        this.copyOut(out);
        continue;
      }
      if (!first) break;
      const turn = first.queue.turns[first.queue.next++];
      if (turn.lane === 'compute') this.compute(turn);
      else this.transfer(turn.steps[0]);
    }
    if (queues.some(({ turns, next }) => next < turns.length))
      throw new StudioError('internal', 'the steps of a schedule wait for each other');
    this.submitted = latest(...Object.values(this.lanes), this.copied);
  }

  /**
   * When a turn has something for the device, or for the threads that copy; undefined while something that it waits for is
   * not done.
   */
  private submittedAt({ steps }: Turn): number | undefined {
    for (const { id, waits, action } of steps) {
      if (isAlone(action) && this.leaving.length > 0) return undefined;
      if ('staging' in action && this.leaving.some(({ slot }) => slot === action.staging.tensor)) return undefined;
      if (waits.some((wait) => !this.done[wait])) return undefined;
      const own = this.publicationOf.get(id);
      if (own !== undefined && !this.published[own]) return undefined;
    }
    const ready = this.readyFor(steps);
    const [{ action }] = steps;
    return Math.max(ready.at, (action.type === 'collect' || action.type === 'fetch' ? this.copies : this.host).at);
  }

  /** When a turn may begin: its lane is free, as are the staging slot and the bytes that it takes. */
  private readyFor(steps: readonly Step[]): Moment {
    const [{ id, action, lane }] = steps;
    const waits = steps.flatMap((step) => step.waits.map((wait) => this.done[wait]));
    const own = this.publicationOf.get(id);
    const slot = 'staging' in action ? this.slots.get(action.staging.tensor) : undefined;
    return latest(
      this.lanes[lane],
      ...waits,
      slot,
      own === undefined ? undefined : this.published[own],
      isAlone(action) ? this.copied : undefined,
    );
  }

  private compute({ steps }: Turn): void {
    const count = steps.reduce((sum, { action }) => sum + dispatches(action).length, 0);
    const submitted = this.encode(this.readyFor(steps), this.submitSeconds(count));
    this.lanes.compute = submitted;
    this.device = latest(this.device, submitted);
    if (count > 0) this.device = after(this.device, { dispatches: this.profile.submitGapSeconds * this.ranks.device });
    for (const step of steps) {
      const begin = latest(submitted, this.device);
      const end = this.onDevice(submitted, this.kernels(dispatches(step.action)));
      this.finish(step, { done: submitted, begin, end });
    }
  }

  private transfer(step: Step): void {
    const begin = this.readyFor([step]);
    const { action } = step;
    if (action.type === 'publish' || action.type === 'store') {
      const pack = dispatches(action);
      const submitted = this.encode(begin, this.rates.pieceSeconds / 2 + pack.length * this.profile.dispatchSeconds);
      const bytes = action.type === 'store' ? action.staging.bytes : action.source.bytes;
      const mapped = this.toSlot(this.onDevice(submitted, this.kernels(pack)), bytes);
      this.leaving.push({ step, begin, mapped, slot: action.staging.tensor, bytes });
      this.lanes[step.lane] = submitted;
      this.done[step.id] = submitted;
      return;
    }
    const { done, end = done, laneFree = done } = this.transferred(step, begin);
    this.lanes[step.lane] = laneFree;
    this.finish(step, { done, begin, end });
  }

  /** `done`: others need not wait any more; `end`: its work is over; `laneFree`: its lane goes on. */
  private transferred({ id, action }: Step, begin: Moment): { done: Moment; end?: Moment; laneFree?: Moment } {
    switch (action.type) {
      case 'collect':
      case 'fetch': {
        const placed = action.type === 'collect' ? action.place : [];
        this.copies = this.filling(this.encode(begin, this.rates.pieceSeconds / 2), action);
        const rest = this.rates.pieceSeconds / 2 + placed.length * this.profile.dispatchSeconds;
        const done = this.encode(this.copies, rest);
        const end = this.onDevice(done, this.inDevice(action.staging.bytes), this.kernels(placed));
        this.slots.set(action.staging.tensor, after(end, { dispatches: this.roundTripSeconds() }));
        return { done, end };
      }
      case 'keep': {
        const done = this.encode(begin, this.rates.pieceSeconds / 2);
        const bytes = action.parts.reduce((sum, { device }) => sum + device.bytes, 0);
        return { done, end: this.toSlot(done, bytes) };
      }
      case 'report': {
        const laneFree = this.encode(begin, this.submitSeconds(0));
        return { done: this.toSlot(laneFree, action.control.bytes), laneFree };
      }
      case 'feed':
        return { done: this.encode(begin, this.submitSeconds(0)) };
      case 'announce':
        this.published[id] = begin;
        return { done: begin };
      default:
        return { done: begin };
    }
  }

  /** The host's threads copy what lies in a download slot. */
  private copyOut(out: Leaving): void {
    const handed = this.encode(out.mapped, this.rates.pieceSeconds / 2);
    const done = after(latest(handed, this.copies), { downloads: out.bytes / this.rates.hostCopyBytesPerSecond });
    this.copies = done;
    this.copied = latest(this.copied, done);
    this.slots.set(out.slot, done);
    this.leaving.splice(this.leaving.indexOf(out), 1);
    this.published[out.step.id] = done;
    this.finish(out.step, { done: this.done[out.step.id] ?? done, begin: out.begin, end: done });
  }

  private finish({ id }: Step, { done, begin, end }: { done: Moment; begin: Moment; end: Moment }): void {
    this.done[id] = done;
    this.startSeconds[id] = begin.at;
    this.endSeconds[id] = end.at;
    if (end.at >= this.last.at) this.last = end;
  }

  /** The host's one thread takes so long; one thing at a time, whatever the lane. */
  private encode(ready: Moment, seconds: number): Moment {
    this.host = after(latest(ready, this.host), { dispatches: seconds });
    return this.host;
  }

  /** The host's time for a submit of so many dispatches. */
  private submitSeconds(dispatchCount: number): number {
    return this.profile.submitSeconds + dispatchCount * this.profile.dispatchSeconds;
  }

  private onDevice(submitted: Moment, ...works: readonly Partial<SecondsByResource>[]): Moment {
    this.device = latest(submitted, this.device);
    for (const work of works) this.device = after(this.device, work);
    return this.device;
  }

  /** The device copies to a download slot, which the host then may read. */
  private toSlot(ready: Moment, bytes: number): Moment {
    const there = this.onDevice(ready, { downloads: bytes / this.rates.downloadBytesPerSecond });
    return after(there, { dispatches: this.roundTripSeconds() });
  }

  /** From the end of the device's work until the host knows of it; when the device is another rank's, that one's turn later. */
  private roundTripSeconds(): number {
    const { software } = this.profile;
    return this.rates.roundTripSeconds + (software ? 0 : (this.ranks.device - 1) * TURN_SECONDS);
  }

  /** When the host will have filled an upload slot; over a simulated link, no sooner than that lets it. */
  private filling(ready: Moment, action: Extract<Action, { type: 'collect' | 'fetch' }>): Moment {
    const { bytes } = action.staging;
    const link = action.type === 'collect' && action.linkGBps !== null ? bytes / (action.linkGBps * 1e9) : 0;
    const uploads = bytes / this.rates.uploadBytesPerSecond;
    return after(latest(ready, this.copies), link > uploads ? { link } : { uploads });
  }

  /** A copy from a staging slot to where its bytes belong, or the like. */
  private inDevice(bytes: number): Partial<SecondsByResource> {
    return { uploads: bytes / this.rates.placeBytesPerSecond };
  }

  /** What the device spends on these dispatches, one after the other. */
  private kernels(list: readonly Dispatch[]): Partial<SecondsByResource> {
    const spent = { compute: 0, memory: 0, dispatches: 0 };
    for (const dispatch of list) {
      const { kernel, params } = dispatch;
      const { seconds, flopsPerSecond, bytesPerSecond } = this.profile.kernels[kernelClass(kernel, params)];
      const compute = kernel.cost(params).flops / flopsPerSecond;
      const memory = bytesMoved(dispatch) / bytesPerSecond;
      if (compute > memory) spent.compute += compute * this.ranks.device;
      else spent.memory += memory * this.ranks.device;
      const apart = kernel === this.lastKernel ? 0 : this.profile.switchSeconds;
      this.lastKernel = kernel;
      spent.dispatches += (seconds + apart) * this.ranks.device;
    }
    return spent;
  }
}

/** What a dispatch moves: of an operand stored as halves, half of what its kernel says. */
export function bytesMoved({ kernel, operands, params }: Dispatch): number {
  // Its parameters do not say how long the rows are; it reads all of them.
  if (kernel.name.startsWith(rowSquareSums.name)) return operands.reduce((sum, { bytes }) => sum + bytes, 0);
  const { bytes } = kernel.cost(params);
  const halves = kernel.operands.map(({ name }, i) => (kernel.halves?.includes(name) ? operands[i].bytes : 0));
  return Math.max(
    bytes / 2,
    halves.reduce((rest, half) => rest - half, bytes),
  );
}

/** What of the host's lane is no copy runs when the copies before it are done. */
function isAlone({ type }: Action): boolean {
  return type === 'report' || type === 'feed' || type === 'announce';
}

/** The turns of a lane, in order: what the compute lane submits together, else a step. */
function turnsOf(steps: readonly Step[], lane: Lane): Turn[] {
  if (lane === 'compute') return computeVisits(steps).map((visit) => ({ lane, steps: visit }));
  return steps.filter((step) => step.lane === lane).map((step) => ({ lane, steps: [step] }));
}
