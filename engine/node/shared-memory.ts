import { closeSync, openSync } from 'node:fs';
import { mkdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import {
  type Awaited,
  CountedMailbox,
  checkTable,
  closedError,
  DEFAULT_TIMEOUT_MS,
  MAX_FAILURE_BYTES,
  peerLostError,
  type Transport,
  timeoutError,
} from '../comm/counted-mailbox.ts';
import type { Mailbox, RegionSpec } from '../comm/mailbox.ts';
import { StudioError } from '../errors.ts';
import { errorCode } from './errno.ts';
import { isSameProcess, processStartTime } from './liveness.ts';
import { createSharedSegment, MAX_VIEW_BYTES, mapSegment } from './shared-segment.ts';

export interface SharedMailboxOptions {
  /** A folder of this run alone, where the ranks find each other. Nothing is left in it once all are open. */
  readonly path: string;
  readonly rank: number;
  readonly worldSize: number;
  readonly regions: readonly RegionSpec[];
  /** The longest that the opening and any later wait may last, in ms. */
  readonly timeoutMs?: number;
  /** Whether a wait may spin for a moment. Say false for a software adapter, which needs the cores. */
  readonly spin?: boolean;
  /** Whether a peer's process still runs. By default its pid and start time are looked at. */
  readonly isAlive?: (rank: number) => boolean;
  /** The most memory that this rank may take for its outbox, in bytes; the rest of the machine's if left out. */
  readonly memoryLimitBytes?: number;
  /** Hears of what is not an error but that a person should know, such as slow memory. */
  readonly onNotice?: (text: string) => void;
}

const MAGIC = 0x53_48_53_54;
/** Each counter has a cache line of its own, so that ranks do not slow each other down by writing to neighbours. */
const LINE = 16;
const FLAG_CLOSED = 1 * LINE;
/** 0, or 1 + the bytes of the message that follows; beside it the rank at fault, which may be another. */
const FLAG_FAILED = 2 * LINE;
const CULPRIT = FLAG_FAILED + 1;
const FAILURE_MESSAGE = 3 * LINE;
const FIRST_COUNTER_LINE = 3 + Math.ceil(MAX_FAILURE_BYTES / (LINE * 4));

const SPIN_MS = 0.05;
/** For how long a wait that may spin goes on looking at each turn of the event loop before it sleeps. */
const EAGER_MS = 5;
const MAX_SLEEP_MS = 8;
const LIFE_CHECK_MS = 100;
const RENDEZVOUS_POLL_MS = 5;

const PAGE_BYTES = 4096;
const REGION_ALIGNMENT_BYTES = 256;

/** Where the parts of a rank's memory lie: counters first, then the regions. */
export interface Layout {
  /** What is mapped as one view each; a region lies within one. */
  readonly views: readonly { readonly offset: number; readonly bytes: number }[];
  readonly regions: readonly { readonly view: number; readonly offset: number }[];
  readonly bytes: number;
}

/** Lays out a rank's memory. Throws StudioError `too-large` for a region that one view cannot hold. */
export function layOut(worldSize: number, regions: readonly RegionSpec[]): Layout {
  const counterLines = FIRST_COUNTER_LINE + worldSize + regions.length * (1 + worldSize);
  const views: { offset: number; bytes: number }[] = [{ offset: 0, bytes: counterLines * LINE * 4 }];
  const places: { view: number; offset: number }[] = [];
  for (const { name, bytes } of regions) {
    if (bytes > MAX_VIEW_BYTES) {
      throw new StudioError(
        'too-large',
        `The exchange ${name} has ${bytes} bytes a rank; at most ${MAX_VIEW_BYTES} can be shared at once. ` +
          'Wrap the model into smaller units (autoWrapPolicy).',
        { region: name, bytes, maxBytes: MAX_VIEW_BYTES },
      );
    }
    let last = views[views.length - 1];
    let offset = roundUp(last.bytes, REGION_ALIGNMENT_BYTES);
    if (offset + bytes > MAX_VIEW_BYTES) {
      last = { offset: roundUp(last.offset + last.bytes, PAGE_BYTES), bytes: 0 };
      views.push(last);
      offset = 0;
    }
    last.bytes = offset + bytes;
    places.push({ view: views.length - 1, offset });
  }
  const end = views[views.length - 1];
  return { views, regions: places, bytes: roundUp(end.offset + end.bytes, PAGE_BYTES) };
}

function roundUp(bytes: number, unit: number): number {
  return Math.ceil(bytes / unit) * unit;
}

/** Why a rank cannot go on, and which rank is at fault: itself, or the one that it has seen fail. */
interface Failure {
  readonly culprit: number;
  readonly how: string;
}

/** One rank's memory as this process sees it. A rank writes only into its own. */
class RankMemory {
  private readonly words: Int32Array<ArrayBuffer>;
  private readonly message: Uint8Array<ArrayBuffer>;
  readonly regions: readonly Uint8Array<ArrayBuffer>[];

  constructor(
    views: readonly ArrayBuffer[],
    layout: Layout,
    private readonly worldSize: number,
    specs: readonly RegionSpec[],
  ) {
    this.words = new Int32Array(views[0], 0, layout.views[0].bytes >> 2);
    this.message = new Uint8Array(views[0], FAILURE_MESSAGE * 4, MAX_FAILURE_BYTES);
    this.regions = layout.regions.map(
      ({ view, offset }, index) => new Uint8Array(views[view], offset, specs[index].bytes),
    );
  }

  markReady(): void {
    Atomics.store(this.words, 0, MAGIC);
  }

  isReady(): boolean {
    return Atomics.load(this.words, 0) === MAGIC;
  }

  /** Whether this memory's rank has mapped the owner's. */
  hasOpened(owner: number): boolean {
    return Atomics.load(this.words, this.openedAt(owner)) === 1;
  }

  markOpened(owner: number): void {
    Atomics.store(this.words, this.openedAt(owner), 1);
  }

  published(region: number): number {
    return Atomics.load(this.words, this.publishedAt(region));
  }

  storePublished(region: number, count: number): void {
    Atomics.store(this.words, this.publishedAt(region), count);
  }

  /** How often this memory's rank has read the owner's region. */
  consumed(owner: number, region: number): number {
    return Atomics.load(this.words, this.consumedAt(owner, region));
  }

  storeConsumed(owner: number, region: number, count: number): void {
    Atomics.store(this.words, this.consumedAt(owner, region), count);
  }

  isClosed(): boolean {
    return Atomics.load(this.words, FLAG_CLOSED) === 1;
  }

  markClosed(): void {
    Atomics.store(this.words, FLAG_CLOSED, 1);
  }

  failure(): Failure | null {
    const flag = Atomics.load(this.words, FLAG_FAILED);
    if (flag === 0) return null;
    const how = new TextDecoder().decode(this.message.slice(0, flag - 1));
    return { culprit: Atomics.load(this.words, CULPRIT), how };
  }

  markFailed({ culprit, how }: Failure): void {
    if (Atomics.load(this.words, FLAG_FAILED) !== 0) return;
    const { written } = new TextEncoder().encodeInto(how, this.message);
    Atomics.store(this.words, CULPRIT, culprit);
    Atomics.store(this.words, FLAG_FAILED, 1 + written);
  }

  private openedAt(owner: number): number {
    return (FIRST_COUNTER_LINE + owner) * LINE;
  }

  private publishedAt(region: number): number {
    return (FIRST_COUNTER_LINE + this.worldSize + region) * LINE;
  }

  private consumedAt(owner: number, region: number): number {
    return (FIRST_COUNTER_LINE + this.worldSize + this.regions.length * (1 + owner) + region) * LINE;
  }
}

interface Waiter {
  readonly ready: () => boolean;
  readonly awaited: Awaited;
  readonly since: number;
  readonly settle: (error?: Error) => void;
}

/** Waits by looking: there is no wake-up between processes that a JavaScript thread could sleep on. */
class SharedTransport implements Transport {
  private readonly waiters = new Set<Waiter>();
  private closed = false;
  private timer: { readonly cancel: () => void } | null = null;
  private lifeCheckedAt = performance.now();

  constructor(
    private readonly rank: number,
    private readonly memories: readonly RankMemory[],
    private readonly isAlive: (rank: number) => boolean,
    private readonly processOf: (rank: number) => string,
    private readonly spin: boolean,
    private readonly timeoutMs: number,
  ) {}

  bytes(owner: number, region: number): Uint8Array<ArrayBuffer> {
    return this.memories[owner].regions[region];
  }

  published(owner: number, region: number): number {
    return this.memories[owner].published(region);
  }

  consumed(owner: number, region: number, reader: number): number {
    return this.memories[reader].consumed(owner, region);
  }

  storePublished(region: number, count: number): void {
    this.memories[this.rank].storePublished(region, count);
  }

  storeConsumed(owner: number, region: number, count: number): void {
    this.memories[this.rank].storeConsumed(owner, region, count);
  }

  fail(message: string): void {
    this.memories[this.rank].markFailed({ culprit: this.rank, how: message });
  }

  close(): void {
    this.closed = true;
    this.memories[this.rank].markClosed();
    for (const waiter of [...this.waiters]) this.visit(waiter);
    this.timer?.cancel();
  }

  wait(ready: () => boolean, awaited: Awaited): Promise<void> {
    return new Promise((resolve, reject) => {
      const waiter: Waiter = {
        ready,
        awaited,
        since: performance.now(),
        settle: (error) => {
          this.waiters.delete(waiter);
          if (error) reject(error);
          else resolve();
        },
      };
      do {
        if (this.visit(waiter)) return;
      } while (this.spin && performance.now() - waiter.since < SPIN_MS);
      this.waiters.add(waiter);
      this.timer?.cancel();
      this.schedule();
    });
  }

  /** Settles the wait if it can be; says whether it did. */
  private visit(waiter: Waiter): boolean {
    const { ready, awaited, settle } = waiter;
    const end = (error?: Error) => {
      settle(error);
      return true;
    };
    if (this.closed) return end(closedError(awaited));
    for (const [peer, memory] of this.memories.entries()) {
      const failure = peer === this.rank ? null : memory.failure();
      if (failure !== null) return end(this.lost(failure));
    }
    if (ready()) return end();
    const peer = awaited.peer();
    if (this.memories[peer].isClosed() && !ready()) {
      return end(
        this.lost({ culprit: peer, how: `it left the group before the ${awaited.what} of ${awaited.region}.` }),
      );
    }
    return false;
  }

  /**
   * The error of a loss. It is passed on first: this rank will end because of it, and a peer that then finds two ranks
   * gone must not blame the wrong one.
   */
  private lost(failure: Failure): StudioError {
    this.memories[this.rank].markFailed(failure);
    return peerLostError(failure.culprit, failure.how);
  }

  private schedule(): void {
    const shortest = performance.now() - Math.max(...[...this.waiters].map(({ since }) => since));
    if (this.spin && shortest < EAGER_MS) {
      const immediate = setImmediate(() => this.look());
      this.timer = { cancel: () => clearImmediate(immediate) };
    } else {
      // An eighth of what the wait has lasted, so that sleeping costs a wait an eighth at most.
      const sleep = setTimeout(() => this.look(), Math.min(MAX_SLEEP_MS, Math.max(1, shortest / 8)));
      this.timer = { cancel: () => clearTimeout(sleep) };
    }
  }

  private look(): void {
    this.timer = null;
    const now = performance.now();
    let dead: number | undefined;
    if (now - this.lifeCheckedAt >= LIFE_CHECK_MS) {
      this.lifeCheckedAt = now;
      dead = this.memories.findIndex((memory, peer) => peer !== this.rank && !memory.isClosed() && !this.isAlive(peer));
    }
    for (const waiter of [...this.waiters]) {
      // What the dead one did while it lived counts, so look once more after it was found dead.
      if (this.visit(waiter)) continue;
      if (dead !== undefined && dead >= 0) {
        waiter.settle(this.lost({ culprit: dead, how: `its process ${this.processOf(dead)} has ended.` }));
      } else if (now - waiter.since > this.timeoutMs) {
        waiter.settle(timeoutError(waiter.awaited, this.timeoutMs));
      }
    }
    if (this.waiters.size > 0) this.schedule();
  }
}

/** What a rank tells its peers in the run's folder: where its memory is, or that it has none and through whom. */
type Announcement = Offer | { readonly failure: Failure };

interface Offer {
  readonly pid: number;
  readonly startTime: number;
  readonly fd: number;
  readonly worldSize: number;
  readonly regions: readonly RegionSpec[];
}

/**
 * Opens this rank's mailbox of a group of processes, and resolves once all ranks have opened theirs. Each rank makes its
 * own memory; it has no name in the file system, so nothing is left over whoever is killed when. Rejects with
 * `out-of-memory`, `invalid-schedule` when the ranks' tables differ, `peer-lost`, or `timeout` when one does not come.
 */
export async function openSharedMailbox(options: SharedMailboxOptions): Promise<Mailbox> {
  const { path, rank, worldSize, regions, timeoutMs = DEFAULT_TIMEOUT_MS } = options;
  checkTable(worldSize, regions);
  await mkdir(path, { recursive: true, mode: 0o700 });
  const rendezvous = new Rendezvous(options);
  try {
    const memories = await rendezvous.meet();
    const spin = options.spin !== false && worldSize <= availableParallelism();
    const { isAlive, processOf } = rendezvous;
    const transport = new SharedTransport(rank, memories, isAlive, processOf, spin, timeoutMs);
    return new CountedMailbox(rank, worldSize, regions, transport);
  } catch (error) {
    // Without a word the peers would wait for this rank until their time is up.
    await rendezvous.giveUp(error as Error);
    throw error;
  }
}

/** How the ranks of a run find each other's memory: by files in the run's folder, which go once all have. */
class Rendezvous {
  private readonly layout: Layout;
  private readonly memories: RankMemory[] = [];
  private readonly offers: Offer[] = [];
  private readonly peers: number[];
  private readonly timeoutMs: number;
  private readonly deadline: number;

  constructor(private readonly options: SharedMailboxOptions) {
    const { rank, worldSize, regions } = options;
    this.layout = layOut(worldSize, regions);
    this.peers = Array.from({ length: worldSize }, (_, peer) => peer).filter((peer) => peer !== rank);
    this.timeoutMs = options.timeoutMs ?? DEFAULT_TIMEOUT_MS;
    this.deadline = performance.now() + this.timeoutMs;
  }

  readonly isAlive = (peer: number): boolean => {
    if (this.options.isAlive) return this.options.isAlive(peer);
    const { pid, startTime } = this.offers[peer];
    return isSameProcess(pid, startTime);
  };

  readonly processOf = (peer: number): string => `${this.offers[peer].pid}`;

  /** The memories of all ranks, by rank, once each rank has those of all. */
  async meet(): Promise<RankMemory[]> {
    const { rank, worldSize, regions } = this.options;
    const { fd } = await createSharedSegment(this.layout.bytes, this.options);
    try {
      const own = await this.map(fd);
      this.memories[rank] = own;
      own.markReady();
      await this.announce({ pid: process.pid, startTime: processStartTime(process.pid)!, fd, worldSize, regions });
      for (const peer of this.peers) {
        this.offers[peer] = await this.until(peer, () => this.offerOf(peer));
        this.memories[peer] = await this.openMemory(peer);
        own.markOpened(peer);
      }
      for (const peer of this.peers) {
        await this.until(peer, async () => this.memories[peer].hasOpened(rank) || null);
      }
    } finally {
      // The peers open the memory through this descriptor; what they have mapped they keep.
      closeSync(fd);
    }
    await rm(this.file(rank), { force: true });
    return this.memories;
  }

  /** Tells the peers that this rank will not come, and whose fault that is. */
  async giveUp(error: Error): Promise<void> {
    const { rank } = this.options;
    const lost = error instanceof StudioError && error.code === 'peer-lost' ? error.details : null;
    const failure = { culprit: lost ? Number(lost.rank) : rank, how: lost ? String(lost.message) : error.message };
    this.memories[rank]?.markFailed(failure);
    await this.announce({ failure }).catch(() => {
      // The folder is gone or full: the peers' own limits of time hold.
    });
  }

  /** Asks again and again until there is an answer, a peer has failed, or the time is up. */
  private async until<T>(peer: number, ask: () => Promise<T | null>): Promise<T> {
    for (;;) {
      const answer = await ask();
      if (answer !== null) return answer;
      for (const other of this.peers) {
        const said = await this.readAnnouncement(other);
        const failure = said && 'failure' in said ? said.failure : this.memories[other]?.failure();
        if (failure) throw peerLostError(failure.culprit, failure.how);
        if (this.memories[other]?.isClosed()) throw peerLostError(other, 'it left while the others still came.');
      }
      for (const other of this.peers) {
        if (this.offers[other] && !this.isAlive(other)) throw this.ended(other);
      }
      if (performance.now() > this.deadline) {
        const { rank } = this.options;
        throw new StudioError(
          'timeout',
          `Rank ${rank} waited ${this.timeoutMs} ms for rank ${peer} to open its mailbox; see the log of rank ${peer}.`,
          { rank, peer, awaited: 'opening', timeoutMs: this.timeoutMs },
        );
      }
      await new Promise((resolve) => setTimeout(resolve, RENDEZVOUS_POLL_MS));
    }
  }

  /** The peer's offer, checked, or null while there is none. */
  private async offerOf(peer: number): Promise<Offer | null> {
    const said = await this.readAnnouncement(peer);
    if (said === null || 'failure' in said) return null;
    const { rank } = this.options;
    const difference = tableDifference(this.options, said);
    if (difference === null) return said;
    throw new StudioError(
      'invalid-schedule',
      `Ranks ${rank} and ${peer} do not exchange the same: ${difference}. All ranks of a run must be of one version.`,
      { rank, peer },
    );
  }

  private async openMemory(peer: number): Promise<RankMemory> {
    const { pid, fd } = this.offers[peer];
    let own: number | undefined;
    try {
      if (!this.isAlive(peer)) throw this.ended(peer);
      own = openSync(`/proc/${pid}/fd/${fd}`, 'r+');
      const memory = await this.map(own);
      if (!memory.isReady()) throw new StudioError('internal', `What rank ${peer} shares is not a mailbox.`);
      return memory;
    } catch (error) {
      throw errorCode(error) === 'ENOENT' ? this.ended(peer) : error;
    } finally {
      if (own !== undefined) closeSync(own);
    }
  }

  private ended(peer: number): StudioError {
    return peerLostError(peer, `its process ${this.processOf(peer)} has ended.`);
  }

  private async map(fd: number): Promise<RankMemory> {
    const views: ArrayBuffer[] = [];
    for (const { offset, bytes } of this.layout.views) views.push(await mapSegment(fd, offset, bytes));
    return new RankMemory(views, this.layout, this.options.worldSize, this.options.regions);
  }

  private file(rank: number): string {
    return join(this.options.path, `rank-${rank}.json`);
  }

  private async announce(announcement: Announcement): Promise<void> {
    const file = this.file(this.options.rank);
    const draft = `${file}.draft`;
    await writeFile(draft, JSON.stringify(announcement), { mode: 0o600 });
    await rename(draft, file);
  }

  private async readAnnouncement(rank: number): Promise<Announcement | null> {
    const file = this.file(rank);
    try {
      return JSON.parse(await readFile(file, 'utf8')) as Announcement;
    } catch (error) {
      if (errorCode(error) === 'ENOENT') return null;
      throw new StudioError('io', `${file} cannot be read: ${(error as Error).message}.`, {}, { cause: error });
    }
  }
}

interface Table {
  readonly worldSize: number;
  readonly regions: readonly RegionSpec[];
}

/** The first difference of two tables in words, or null. */
function tableDifference(ours: Table, theirs: Table): string | null {
  if (ours.worldSize !== theirs.worldSize) return `groups of ${ours.worldSize} and of ${theirs.worldSize} ranks`;
  const show = (region: RegionSpec | undefined) =>
    region ? `${region.name} (${region.bytes} bytes, ${region.readsPerPublication} reads)` : 'nothing';
  for (let index = 0; index < Math.max(ours.regions.length, theirs.regions.length); index++) {
    const [own, other] = [show(ours.regions[index]), show(theirs.regions[index])];
    if (own !== other) return `region ${index} is ${own} and ${other}`;
  }
  return null;
}
