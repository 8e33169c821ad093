/**
 * How the ranks of one run exchange bytes. There is one primitive: a rank fills its own region and publishes it,
 * every other rank reads it and says that it has. All collectives are made of this, so the same executor runs alone,
 * with all ranks in one process, and with one process per rank over shared memory.
 */

/** One region of each rank's outbox. All ranks build the same table from the same schedule, in the same order. */
export interface RegionSpec {
  readonly name: string;
  readonly bytes: number;
  /** How often each peer reads one publication before the owner may overwrite it (a gather in forward and one in backward: 2). */
  readonly readsPerPublication: number;
  /** The ranks that read each other's publications, as a partition of all ranks; everybody reads everybody's if left out. */
  readonly groups?: readonly (readonly number[])[];
}

/** One rank's view of the group. Region indices are positions in the table given when the mailbox was opened. */
export interface Mailbox {
  readonly rank: number;
  readonly worldSize: number;
  readonly regions: readonly RegionSpec[];

  /** This rank's bytes of a region; valid for the life of the mailbox. Write only between beginWrite and publish. */
  outbox(region: number): Uint8Array<ArrayBuffer>;
  /** A peer's bytes of a region. Read only between arrived and consumed. */
  inbox(region: number, peer: number): Uint8Array<ArrayBuffer>;

  /** Resolves once every peer has read this rank's last publication of the region the agreed number of times. */
  beginWrite(region: number): Promise<void>;
  /** Makes the region's bytes visible to the peers. */
  publish(region: number): void;
  /**
   * Begins this rank's next read of the peer's region and resolves once the publication that it is of is there. Several may
   * be under way; each ends with one `consumed`, in any order.
   */
  arrived(region: number, peer: number): Promise<void>;
  /** Says that this rank has read the peer's publication once. */
  consumed(region: number, peer: number): void;

  /** Tells the peers that this rank has failed: their waits end with `peer-lost` and this message (at most 400 bytes of it). */
  fail(message: string): void;
  /** Ends this rank's use; waits of this rank still open are rejected. Idempotent. */
  close(): void;
}
