import type { CheckpointPart, PartReader } from '../checkpoint/run-content.ts';
import type { Mailbox } from '../comm/mailbox.ts';
import { StudioError } from '../errors.ts';
import { rowsOf, type ShardSegment } from '../ops/shard/layout.ts';
import type { CompiledRun } from '../schedule/compile.ts';
import type { StoredGroup } from '../schedule/storage.ts';
import type { SavedPart } from './describe-checkpoint.ts';
import type { StateReader } from './state-reader.ts';

/** Most bytes of a shard that travel to rank 0, or are read, at once. */
export const SAVE_PIECE_BYTES = 4 * 2 ** 20;

/** A rank with what it needs to take part in a save. `region` has SAVE_PIECE_BYTES, read once by each peer. */
export interface SavingRank {
  readonly run: CompiledRun;
  readonly mailbox: Mailbox;
  readonly region: number;
  /** What this rank keeps. Only the ranks of the first row of the mesh are asked. */
  readonly read: StateReader;
}

/** Whether a rank's shard goes into a checkpoint: rows of a mesh keep the same, so the first one's do. */
export function isWriter({ rank, shards }: CompiledRun): boolean {
  return rank < shards.count;
}

/**
 * The whole of one part of a parameter, row after row, on rank 0: its own rows from its device, the peers' through the
 * mailbox a piece at a time. Every rank must go through the same parts in the same order; others than rank 0 get nothing.
 */
export async function* gatherPart(
  rank: SavingRank,
  name: string,
  part: CheckpointPart,
): AsyncGenerator<Uint8Array<ArrayBuffer>> {
  const { run, mailbox, region } = rank;
  const { group, segment } = find(run, name);
  const holders = run.shards.count;
  for (let holder = 0; holder < holders; holder++) {
    // What rank 0 holds goes nowhere.
    if (holder === 0 && mailbox.rank !== 0) continue;
    const bytes = rowsOf(segment, holder).count * segment.rowLength * 4;
    for (let done = 0; done < bytes; done += SAVE_PIECE_BYTES) {
      const size = Math.min(SAVE_PIECE_BYTES, bytes - done);
      if (holder !== mailbox.rank) {
        const piece = await take(mailbox, region, holder, size);
        if (mailbox.rank === 0) yield piece;
        continue;
      }
      const own = await rank.read(tensorOf(group, part), segment.shardOffset * 4 + done, size);
      if (holder === 0) yield own;
      else await give(mailbox, region, own);
    }
  }
}

/** Goes through the parts without keeping them: what every rank but 0 does, and rank 0 after its disk has failed. */
export async function drainParts(rank: SavingRank, parts: Iterable<SavedPart>): Promise<void> {
  for (const { name, part } of parts) for await (const _ of gatherPart(rank, name, part));
}

/** The parts as rank 0 gathers them when a writer asks: told of the pieces of each as it is begun, and when they are all there. */
export function gatheringReader(
  rank: SavingRank,
  { onBegin, onEnd }: { readonly onBegin: (pieces: AsyncGenerator<Uint8Array>) => void; readonly onEnd: () => void },
): PartReader {
  return (name, part) => {
    const pieces = gatherPart(rank, name, part);
    onBegin(pieces);
    const next = async () => {
      const piece = await pieces.next();
      if (piece.done) onEnd();
      return piece;
    };
    // Without `return`: a writer that gives up must not end the exchange half way.
    return { [Symbol.asyncIterator]: () => ({ next }) };
  };
}

/** The rows that a rank itself holds, read a piece at a time. Others are 'internal'. */
export function ownRowsReader({ run, read }: Pick<SavingRank, 'run' | 'read'>): PartReader {
  return async function* (name, part, first, count) {
    const { group, segment } = find(run, name);
    const own = rowsOf(segment, run.shards.index);
    const begin = first - own.first * segment.rowLength;
    if (begin < 0 || begin + count > own.count * segment.rowLength)
      throw new StudioError(
        'internal',
        `rank ${run.rank} does not hold elements ${first} to ${first + count} of ${name}`,
      );
    const offset = (segment.shardOffset + begin) * 4;
    for (let done = 0; done < count * 4; done += SAVE_PIECE_BYTES)
      yield await read(tensorOf(group, part), offset + done, Math.min(SAVE_PIECE_BYTES, count * 4 - done));
  };
}

/** Where a rank keeps a part of the parameters of a group. */
function tensorOf(group: StoredGroup, part: CheckpointPart): string {
  return (part === 'param' ? group.parameters : group.state[part]).name;
}

function find(run: CompiledRun, name: string): { group: StoredGroup; segment: ShardSegment } {
  for (const group of run.steps[0].groups) {
    const segment = group.layout.segments.find((s) => s.name === name);
    if (segment) return { group, segment };
  }
  throw new StudioError('internal', `no group holds ${name}`);
}

async function give(mailbox: Mailbox, region: number, bytes: Uint8Array): Promise<void> {
  await mailbox.beginWrite(region);
  mailbox.outbox(region).set(bytes);
  mailbox.publish(region);
}

async function take(mailbox: Mailbox, region: number, peer: number, bytes: number): Promise<Uint8Array<ArrayBuffer>> {
  await mailbox.arrived(region, peer);
  // Only rank 0 looks at it; the others just let the owner go on.
  const piece = mailbox.rank === 0 ? mailbox.inbox(region, peer).slice(0, bytes) : new Uint8Array(0);
  mailbox.consumed(region, peer);
  return piece;
}
