import { reduceTree } from '../ops/shard/reduce-tree.ts';
import { shardPack } from '../ops/shard/shard-pack.ts';
import { unshard } from '../ops/shard/unshard.ts';
import type { Draft } from './draft.ts';
import type { Range, StepKind, StepPhase, Tensor } from './schedule.ts';

/**
 * The collectives as steps. Each is cut into pieces that fit a staging slot; a piece is one `publish` step of the host lane
 * (device to host to the peers) and one `collect` step of the comm lane (peers to host to device). `[begin, begin + count)`
 * are elements of a shard.
 */

/** What all steps of one collective have in common. */
export interface CollectiveName {
  readonly kind: Extract<StepKind, 'all-gather' | 'reduce-scatter' | 'all-reduce'>;
  readonly unit: string;
  readonly phase: StepPhase;
  /** Names its regions; the same in each step of training. */
  readonly name: string;
}

/** A flat tensor seen as shards: the segment table on the device, and the length of each rank's shard. */
export interface Sharding {
  readonly table: Range;
  readonly segments: number;
  readonly shardElements: number;
}

interface Piece {
  readonly begin: number;
  readonly count: number;
}

/** Publications that share a ring of regions may run this far ahead of their readers. */
const RING_REGIONS = 4;

/** Pieces of a shard such that those of all peers together fit one staging slot. */
function pieces(draft: Draft, shardElements: number): Piece[] {
  const peers = Math.max(1, draft.world - 1);
  const most = Math.max(4, Math.floor(draft.profile.stagingSlotBytes / 4 / peers / 4) * 4);
  const list: Piece[] = [];
  for (let begin = 0; begin < shardElements; begin += most)
    list.push({ begin, count: Math.min(most, shardElements - begin) });
  return list;
}

/** Regions of this rank's shard of `source`, published once a step and read `reads` times by each peer. */
export function publishShard(
  draft: Draft,
  c: CollectiveName,
  source: Range,
  sharding: Sharding,
  reads: number,
): number[] {
  return pieces(draft, sharding.shardElements).map(({ begin, count }, i) => {
    const region = draft.region(`${c.name} ${i}`, count * 4, reads);
    const range = { tensor: source.tensor, offsetBytes: source.offsetBytes + begin * 4, bytes: count * 4 };
    listPublish(draft, c, region, range, null);
    return region;
  });
}

function listPublish(
  draft: Draft,
  c: CollectiveName,
  region: number,
  source: Range,
  pack: ReturnType<Draft['dispatch']> | null,
): void {
  const staging = draft.stagingSlot('download', 'comm', 2, source.bytes);
  draft.list({
    kind: 'download',
    lane: 'host',
    phase: c.phase,
    label: `publish ${c.name}`,
    unit: c.unit,
    visit: draft.nextVisit(),
    action: { type: 'publish', pack, source, staging, region },
  });
}

interface GatherInput {
  readonly source: Range;
  readonly target: Range;
  readonly sharding: Sharding;
  /** See DraftStep. */
  readonly after?: readonly number[];
}

/**
 * All-gather: each rank's shard, this rank's own from `source` and the peers' from the regions that `publishShard` gave,
 * to its place in `target`. Returns the ids of its steps.
 */
export function gather(
  draft: Draft,
  c: CollectiveName,
  io: GatherInput & { readonly regions: readonly number[] },
): number[] {
  return pieces(draft, io.sharding.shardElements).map((piece, i) => gatherPiece(draft, c, io, piece, i, io.regions[i]));
}

/** One piece of an all-gather; the first also places this rank's own shard, all of it. */
function gatherPiece(
  draft: Draft,
  c: CollectiveName,
  { source, target, sharding, after = [] }: GatherInput,
  { begin, count }: Piece,
  index: number,
  region: number,
): number {
  const peers = peersOf(draft);
  const place = (rank: number, from: Range, first: number, n: number, sourceOffset: number) =>
    draft.dispatch(unshard, [sharding.table, from, target], {
      segments: sharding.segments,
      begin: first,
      count: n,
      rank,
      sourceOffset,
    });
  const received = receivedTensor(draft, c, index, count);
  const own = index === 0 ? [place(draft.rank, source, 0, sharding.shardElements, 0)] : [];
  return listCollect(draft, c, {
    region,
    inboxOffsets: peers.map(() => 0),
    count,
    received,
    place: [...own, ...peers.map((peer, slot) => place(peer, draft.whole(received), begin, count, slot * count))],
    after,
  });
}

/**
 * Reduce-scatter: the mean over ranks of `full`, added in the canonical tree; this rank's shard of it to `target`.
 */
export function reduceScatter(
  draft: Draft,
  c: CollectiveName,
  io: { full: Range; target: Range; sharding: Sharding },
): void {
  const { full, target, sharding } = io;
  const peers = peersOf(draft);
  for (const [i, { begin, count }] of pieces(draft, sharding.shardElements).entries()) {
    const common = { segments: sharding.segments, begin, count, self: draft.rank };
    const packed = draft.tensor(`${c.name} packed ${i}`, peers.length * count * 4, 'workspace');
    const pack = draft.dispatch(shardPack, [sharding.table, full, draft.whole(packed)], {
      ...common,
      ranks: peers.length,
    });
    const region = ringRegion(draft, 'reduce', packed.bytes);
    listPublish(draft, c, region, draft.whole(packed), pack);
    const received = receivedTensor(draft, c, i, count);
    const reduce = draft.dispatch(reduceTree, [sharding.table, full, draft.whole(received), target], {
      ...common,
      world: draft.world,
      outOffset: begin,
      scale: Math.fround(1 / draft.world),
      accumulate: 0,
    });
    // In a peer's region, this rank's slot is its place among the ranks without that peer.
    const inboxOffsets = peers.map((peer) => (draft.rank < peer ? draft.rank : draft.rank - 1) * count * 4);
    listCollect(draft, c, { region, inboxOffsets, count, received, place: [reduce], after: [] });
  }
}

/**
 * All-reduce in place: each rank reduces its shard of `full` into `reduced`, then all gather. Piece by piece: the pieces
 * take turns in a ring of regions, so one must be read before the ring comes round.
 */
export function allReduce(
  draft: Draft,
  c: CollectiveName,
  io: { full: Range; reduced: Tensor; sharding: Sharding },
): void {
  const { full, reduced, sharding } = io;
  reduceScatter(draft, c, { full, target: draft.whole(reduced), sharding });
  const back = { ...c, name: `${c.name} reduced` };
  const gathering = { source: draft.whole(reduced), target: full, sharding };
  for (const [i, piece] of pieces(draft, sharding.shardElements).entries()) {
    const region = ringRegion(draft, 'reduced', piece.count * 4);
    listPublish(
      draft,
      back,
      region,
      { tensor: reduced.id, offsetBytes: piece.begin * 4, bytes: piece.count * 4 },
      null,
    );
    gatherPiece(draft, back, gathering, piece, i, region);
  }
}

function listCollect(
  draft: Draft,
  c: CollectiveName,
  io: {
    region: number;
    inboxOffsets: readonly number[];
    count: number;
    received: Tensor;
    place: ReturnType<Draft['dispatch']>[];
    after: readonly number[];
  },
): number {
  const bytes = (draft.world - 1) * io.count * 4;
  return draft.list({
    kind: c.kind,
    lane: 'comm',
    phase: c.phase,
    label: `${c.kind} ${c.name}`,
    unit: c.unit,
    visit: draft.nextVisit(),
    after: io.after,
    action: {
      type: 'collect',
      region: io.region,
      inboxOffsets: io.inboxOffsets,
      bytesPerPeer: io.count * 4,
      staging: draft.stagingSlot('upload', 'comm', 2, bytes),
      received: draft.whole(io.received),
      place: io.place,
    },
  });
}

function receivedTensor(draft: Draft, c: CollectiveName, piece: number, count: number): Tensor {
  return draft.tensor(`${c.name} received ${piece}`, (draft.world - 1) * count * 4, 'workspace');
}

/** Regions that several collectives of a step take in turn; each is as large as its largest use. */
function ringRegion(draft: Draft, name: string, bytes: number): number {
  const uses = draft.ringUses.get(name) ?? 0;
  draft.ringUses.set(name, uses + 1);
  const turn = `${name} ring ${uses % RING_REGIONS}`;
  const known = draft.regions.findIndex((r) => r.name === turn);
  if (known < 0) return draft.region(turn, bytes, 1);
  draft.regions[known] = { ...draft.regions[known], bytes: Math.max(draft.regions[known].bytes, bytes) };
  return known;
}

function peersOf(draft: Draft): number[] {
  return Array.from({ length: draft.world }, (_, rank) => rank).filter((rank) => rank !== draft.rank);
}
