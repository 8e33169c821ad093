import { StudioError } from '../errors.ts';
import type { Mailbox, RegionSpec } from './mailbox.ts';

/** The most bytes of a failure's message that reach the peers, in UTF-8. */
export const MAX_FAILURE_BYTES = 400;

/** How long a wait for a peer lasts when nothing else is said, in ms. */
export const DEFAULT_TIMEOUT_MS = 60_000;

/** What a wait is for, in words that an error can use. */
export interface Awaited {
  readonly rank: number;
  readonly region: string;
  /** The rank that has not done its part. Asked when the wait ends badly, since a write waits for several. */
  readonly peer: () => number;
  readonly what: 'publication' | 'reads';
}

/**
 * What differs between one process and several: where bytes and counters lie, and how to wait. Counters are int32 and
 * wrap; each has one writer. A store to a counter comes after the bytes that it announces, for every rank.
 */
export interface Transport {
  bytes(owner: number, region: number): Uint8Array<ArrayBuffer>;
  /** How often the owner has published the region. */
  published(owner: number, region: number): number;
  /** How often the reader has read the owner's region. */
  consumed(owner: number, region: number, reader: number): number;
  storePublished(region: number, count: number): void;
  storeConsumed(owner: number, region: number, count: number): void;
  /** Resolves once `ready` holds; rejects with `timeout` or `peer-lost`, and when `close` is called. `ready` never turns false again. */
  wait(ready: () => boolean, awaited: Awaited): Promise<void>;
  fail(message: string): void;
  close(): void;
}

/** Refuses a table that no group can use. Throws RangeError; the table is built by the engine, so this is a bug's trap. */
export function checkTable(worldSize: number, regions: readonly RegionSpec[]): void {
  if (!Number.isInteger(worldSize) || worldSize < 1) throw new RangeError(`a group of ${worldSize} ranks`);
  const names = new Set<string>();
  for (const { name, bytes, readsPerPublication } of regions) {
    if (names.has(name)) throw new RangeError(`two regions are named ${name}`);
    names.add(name);
    if (!Number.isSafeInteger(bytes) || bytes < 0) throw new RangeError(`region ${name} has ${bytes} bytes`);
    if (!Number.isInteger(readsPerPublication) || readsPerPublication < 1) {
      throw new RangeError(`region ${name} is read ${readsPerPublication} times per publication`);
    }
  }
}

/** True once a wrapping int32 counter has reached `target`, a plain count. They are never 2^31 apart. */
export function reached(counter: number, target: number): boolean {
  return ((counter - target) | 0) >= 0;
}

/**
 * The mailbox's rules over a transport. The n-th publication of a region may be overwritten once each peer has read it
 * readsPerPublication times. Misuse (publish without beginWrite, consumed without arrived, use after close) throws Error.
 */
export class CountedMailbox implements Mailbox {
  private readonly publications: number[];
  private readonly writing: ('no' | 'waiting' | 'yes')[];
  private readonly reads: number[][];
  /** Reads that have begun to wait, and those whose bytes are there and not consumed yet. */
  private readonly begun: number[][];
  private readonly readable: number[][];
  private readonly peers: number[];
  /** For each region, the peers that read this rank's publications and that it reads. */
  private readonly readers: (readonly number[])[];
  private closed = false;
  private toldOfLoss = false;

  constructor(
    readonly rank: number,
    readonly worldSize: number,
    readonly regions: readonly RegionSpec[],
    private readonly transport: Transport,
  ) {
    checkTable(worldSize, regions);
    if (!Number.isInteger(rank) || rank < 0 || rank >= worldSize) {
      throw new RangeError(`rank ${rank} in a group of ${worldSize}`);
    }
    this.peers = Array.from({ length: worldSize }, (_, peer) => peer).filter((peer) => peer !== rank);
    this.readers = regions.map(({ groups }) => {
      const own = groups?.find((ranks) => ranks.includes(rank)) ?? [rank, ...this.peers];
      return own.filter((peer) => peer !== rank);
    });
    this.publications = regions.map(() => 0);
    this.writing = regions.map(() => 'no');
    this.reads = regions.map(() => Array<number>(worldSize).fill(0));
    this.begun = regions.map(() => Array<number>(worldSize).fill(0));
    this.readable = regions.map(() => Array<number>(worldSize).fill(0));
  }

  outbox(region: number): Uint8Array<ArrayBuffer> {
    this.check(region);
    return this.transport.bytes(this.rank, region);
  }

  inbox(region: number, peer: number): Uint8Array<ArrayBuffer> {
    this.check(region, peer);
    return this.transport.bytes(peer, region);
  }

  async beginWrite(region: number): Promise<void> {
    const { name, readsPerPublication } = this.check(region);
    if (this.writing[region] !== 'no') throw new Error(`beginWrite(${name}) twice without publish`);
    this.writing[region] = 'waiting';
    const needed = this.publications[region] * readsPerPublication;
    const peers = this.readers[region];
    const behind = () => peers.find((peer) => !reached(this.transport.consumed(this.rank, region, peer), needed));
    await this.wait(() => behind() === undefined, {
      rank: this.rank,
      region: name,
      peer: () => behind() ?? peers[0],
      what: 'reads',
    });
    this.writing[region] = 'yes';
  }

  publish(region: number): void {
    const { name } = this.check(region);
    if (this.writing[region] !== 'yes') throw new Error(`publish(${name}) without beginWrite`);
    this.writing[region] = 'no';
    this.publications[region] += 1;
    this.transport.storePublished(region, this.publications[region]);
  }

  async arrived(region: number, peer: number): Promise<void> {
    const { name, readsPerPublication } = this.check(region, peer);
    const needed = Math.floor(this.begun[region][peer]++ / readsPerPublication) + 1;
    try {
      await this.wait(() => reached(this.transport.published(peer, region), needed), {
        rank: this.rank,
        region: name,
        peer: () => peer,
        what: 'publication',
      });
    } catch (error) {
      this.begun[region][peer] -= 1;
      throw error;
    }
    this.readable[region][peer] += 1;
  }

  consumed(region: number, peer: number): void {
    const { name } = this.check(region, peer);
    if (this.readable[region][peer] === 0) throw new Error(`consumed(${name}, ${peer}) without arrived`);
    this.readable[region][peer] -= 1;
    this.reads[region][peer] += 1;
    this.transport.storeConsumed(peer, region, this.reads[region][peer]);
  }

  fail(message: string): void {
    // A rank that stops because another did is not the cause: each peer learns of that one by itself.
    if (this.closed || this.toldOfLoss) return;
    this.transport.fail(clip(message));
  }

  close(): void {
    if (this.closed) return;
    this.closed = true;
    this.transport.close();
  }

  private async wait(ready: () => boolean, awaited: Awaited): Promise<void> {
    try {
      await this.transport.wait(ready, awaited);
    } catch (error) {
      if (error instanceof StudioError && error.code === 'peer-lost') this.toldOfLoss = true;
      throw error;
    }
  }

  private check(region: number, peer?: number): RegionSpec {
    if (this.closed) throw new Error(`rank ${this.rank} uses its mailbox after close`);
    const spec = this.regions[region];
    if (spec === undefined) throw new RangeError(`region ${region} of ${this.regions.length}`);
    if (peer !== undefined && !this.readers[region].includes(peer)) {
      throw new RangeError(`rank ${this.rank} of ${this.worldSize} has no peer ${peer}`);
    }
    return spec;
  }
}

/** The message cut to MAX_FAILURE_BYTES of UTF-8, at a whole character. */
function clip(message: string): string {
  const bytes = new Uint8Array(MAX_FAILURE_BYTES);
  const { written } = new TextEncoder().encodeInto(message, bytes);
  return new TextDecoder().decode(bytes.subarray(0, written));
}

/** The error of a wait that lasted too long. */
export function timeoutError(awaited: Awaited, timeoutMs: number): StudioError {
  const { rank, region, what } = awaited;
  const peer = awaited.peer();
  const missing = what === 'publication' ? `publish ${region}` : `read ${region}`;
  return new StudioError(
    'timeout',
    `Rank ${rank} waited ${timeoutMs} ms for rank ${peer} to ${missing}. It is alive but has not come so far; ` +
      `see its log, and if it is only slow, raise the time limit.`,
    { rank, peer, region, awaited: what, timeoutMs },
  );
}

/** The error of a wait that a peer's failure ended. `how` is the peer's own message, or what was seen of its end. */
export function peerLostError(peer: number, how: string): StudioError {
  return new StudioError('peer-lost', `Rank ${peer} is lost: ${how}`, { rank: peer, message: how });
}

/** The error of a wait that this rank's own close ended. */
export function closedError(awaited: Awaited): StudioError {
  const { rank, region, what } = awaited;
  return new StudioError('peer-lost', `Rank ${rank} left the group while it waited for the ${what} of ${region}.`, {
    rank,
    region,
    closed: true,
  });
}
