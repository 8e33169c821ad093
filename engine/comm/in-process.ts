import {
  type Awaited,
  CountedMailbox,
  checkTable,
  closedError,
  DEFAULT_TIMEOUT_MS,
  peerLostError,
  type Transport,
  timeoutError,
} from './counted-mailbox.ts';
import type { Mailbox, RegionSpec } from './mailbox.ts';

interface Waiter {
  readonly rank: number;
  readonly ready: () => boolean;
  readonly awaited: Awaited;
  readonly settle: (error?: Error) => void;
}

/** All ranks' bytes, counters and open waits. */
class Group {
  readonly bytes: Uint8Array<ArrayBuffer>[][];
  readonly published: Int32Array[];
  /** [owner][region * worldSize + reader] */
  readonly consumed: Int32Array[];
  readonly failures: (string | null)[];
  readonly closed: boolean[];
  private readonly waiters = new Set<Waiter>();

  constructor(
    readonly worldSize: number,
    regions: readonly RegionSpec[],
    private readonly timeoutMs: number,
  ) {
    const ranks = Array.from({ length: worldSize }, (_, rank) => rank);
    this.bytes = ranks.map(() => regions.map((region) => new Uint8Array(region.bytes)));
    this.published = ranks.map(() => new Int32Array(regions.length));
    this.consumed = ranks.map(() => new Int32Array(regions.length * worldSize));
    this.failures = ranks.map(() => null);
    this.closed = ranks.map(() => false);
  }

  wait(rank: number, ready: () => boolean, awaited: Awaited): Promise<void> {
    return new Promise((resolve, reject) => {
      let timer: ReturnType<typeof setTimeout> | undefined;
      const waiter: Waiter = {
        rank,
        ready,
        awaited,
        settle: (error) => {
          this.waiters.delete(waiter);
          clearTimeout(timer);
          if (error) reject(error);
          else resolve();
        },
      };
      if (this.visit(waiter)) return;
      this.waiters.add(waiter);
      timer = setTimeout(() => waiter.settle(timeoutError(awaited, this.timeoutMs)), this.timeoutMs);
    });
  }

  /** Looks at every open wait again; called after each change of a counter or of a rank's state. */
  wake(): void {
    for (const waiter of [...this.waiters]) this.visit(waiter);
  }

  /** Settles the wait if it can be; says whether it did. */
  private visit({ rank, ready, awaited, settle }: Waiter): boolean {
    if (this.closed[rank]) {
      settle(closedError(awaited));
      return true;
    }
    const failed = this.failures.findIndex((failure, peer) => failure !== null && peer !== rank);
    if (failed >= 0) {
      settle(peerLostError(failed, this.failures[failed]!));
      return true;
    }
    if (ready()) {
      settle();
      return true;
    }
    if (this.closed[awaited.peer()]) {
      settle(peerLostError(awaited.peer(), `it left the group before the ${awaited.what} of ${awaited.region}.`));
      return true;
    }
    return false;
  }
}

class InProcessTransport implements Transport {
  constructor(
    private readonly group: Group,
    private readonly rank: number,
  ) {}

  bytes(owner: number, region: number): Uint8Array<ArrayBuffer> {
    return this.group.bytes[owner][region];
  }

  published(owner: number, region: number): number {
    return this.group.published[owner][region];
  }

  consumed(owner: number, region: number, reader: number): number {
    return this.group.consumed[owner][region * this.group.worldSize + reader];
  }

  storePublished(region: number, count: number): void {
    this.group.published[this.rank][region] = count;
    this.group.wake();
  }

  storeConsumed(owner: number, region: number, count: number): void {
    this.group.consumed[owner][region * this.group.worldSize + this.rank] = count;
    this.group.wake();
  }

  wait(ready: () => boolean, awaited: Awaited): Promise<void> {
    return this.group.wait(this.rank, ready, awaited);
  }

  fail(message: string): void {
    this.group.failures[this.rank] ??= message;
    this.group.wake();
  }

  close(): void {
    this.group.closed[this.rank] = true;
    this.group.wake();
  }
}

/**
 * The mailboxes of a group whose ranks all live in this process, by rank. A wait ends by a promise, without polling;
 * one that lasts over timeoutMs rejects with `timeout`. Throws RangeError for a table that no group can use.
 */
export function openInProcessMailboxes(
  worldSize: number,
  regions: readonly RegionSpec[],
  options: { readonly timeoutMs?: number } = {},
): Mailbox[] {
  checkTable(worldSize, regions);
  const group = new Group(worldSize, regions, options.timeoutMs ?? DEFAULT_TIMEOUT_MS);
  return Array.from(
    { length: worldSize },
    (_, rank) => new CountedMailbox(rank, worldSize, regions, new InProcessTransport(group, rank)),
  );
}

/** The mailbox of a rank that trains alone: it has no peers, so every wait is over at once. */
export function openSoloMailbox(regions: readonly RegionSpec[]): Mailbox {
  return openInProcessMailboxes(1, regions)[0];
}
