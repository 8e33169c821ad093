import { packHalf } from '../ops/half/pack-half.ts';
import { withHalves } from '../ops/half/with-halves.ts';
import { dtypeBytes, type Kernel } from '../ops/kernel.ts';
import { reduceTree } from '../ops/shard/reduce-tree.ts';
import { shardPack } from '../ops/shard/shard-pack.ts';
import { shardPackHalf } from '../ops/shard/shard-pack-half.ts';
import { unshard } from '../ops/shard/unshard.ts';
import { unshardHalf } from '../ops/shard/unshard-half.ts';
import type { Draft } from './draft.ts';
import { peersIn, type RankGroup } from './mesh.ts';
import type { FloatType } from './precision.ts';
import type { Dispatch, Range, StepKind, StepPhase, Tensor } from './schedule.ts';

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
  /** Names its regions and tensors; the same in each step of training. */
  readonly name: string;
}

/** A flat tensor as the shards of a group of ranks: its segment table on the device, and the length of each shard. */
export interface Sharding {
  readonly group: RankGroup;
  readonly table: Range;
  readonly segments: number;
  readonly shardElements: number;
  /** The rate of the link between the ranks, where a slower one than the machine's is simulated. */
  readonly linkGBps: number | null;
  /** With offload, where this rank keeps its own shard: it comes from the host as those of the peers do. */
  readonly host?: Tensor;
}

/** What is done to the sum over ranks. */
export interface Reduction {
  readonly scale: number;
  /** Whether it is added to what the target holds. */
  readonly accumulate: boolean;
}

interface Piece {
  readonly begin: number;
  readonly count: number;
}

/** Publications that share a ring of regions may run this far ahead of their readers. */
const RING_REGIONS = 8;
/** Most bytes of a piece of what is sharded on the device: a slot is that large, and a smaller piece costs the host as much. */
const PIECE_BYTES = 16.25 * 2 ** 20;
/** In an all-reduce, how many pieces are reduced before the sum of the first goes back to the ranks. */
const ALL_REDUCE_AHEAD = 2;

/** Pieces of a shard, as equal as can be, such that those of all peers together fit one staging slot. */
function pieces(draft: Draft, { group, shardElements, host }: Sharding): Piece[] {
  const sources = Math.max(1, host ? group.ranks.length : group.ranks.length - 1);
  const slotBytes = host ? draft.profile.stagingSlotBytes : Math.min(draft.profile.stagingSlotBytes, PIECE_BYTES);
  const most = Math.max(4, Math.floor(slotBytes / 4 / sources / 4) * 4);
  const size = Math.ceil(shardElements / Math.ceil(shardElements / most) / 4) * 4;
  const list: Piece[] = [];
  for (let begin = 0; begin < shardElements; begin += size)
    list.push({ begin, count: Math.min(size, shardElements - begin) });
  return list;
}

/** A flat tensor, what its floats are stored as, and what they travel as. */
export interface Sent {
  readonly source: Range;
  readonly type: FloatType;
  readonly wire: FloatType;
}

/** Regions of this rank's shard, published once a step and read `reads` times by each peer. */
export function publishShard(
  draft: Draft,
  c: CollectiveName,
  { source, type, wire }: Sent,
  sharding: Sharding,
  reads: number,
): number[] {
  return pieces(draft, sharding).map(({ begin, count }, i) => {
    const bytes = count * dtypeBytes[wire];
    const region = draft.region(`${c.name} ${i}`, bytes, reads, sharding.group);
    if (type === wire) {
      const offsetBytes = source.offsetBytes + begin * dtypeBytes[type];
      listPublish(draft, c, region, { tensor: source.tensor, offsetBytes, bytes }, null);
      return region;
    }
    const packed = draft.whole(draft.tensor(`${c.name} packed ${i}`, bytes, 'workspace'));
    listPublish(draft, c, region, packed, draft.dispatch(packHalf, [source, packed], { n: count, xOffset: begin }));
    return region;
  });
}

/** What places a rank's elements, stored as `from`, into a unit stored as `to`. */
function placing(from: FloatType, to: FloatType): Kernel {
  if (to === 'f32') return unshard;
  return from === 'f16' ? withHalves(unshardHalf, ['source']) : unshardHalf;
}

function listPublish(draft: Draft, c: CollectiveName, region: number, source: Range, pack: Dispatch | null): void {
  const staging = draft.stagingSlot('download', 'comm', source.bytes);
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

/**
 * With offload: the region that is this rank's shard on the host. Peers read it piece by piece, `gathers` times a step, and
 * this rank says once a step that they may.
 */
export function hostShardRegion(
  draft: Draft,
  name: string,
  sharding: Sharding,
  gathers: number,
  type: FloatType,
): number {
  const reads = Math.max(1, gathers * pieces(draft, { ...sharding, host: sharding.host ?? noTensor }).length);
  return draft.region(name, sharding.shardElements * dtypeBytes[type], reads, sharding.group);
}

const noTensor: Tensor = { id: -1, name: '', bytes: 0, category: 'parameters', space: 'host', state: true };

/**
 * All-gather with offload: the shards of all ranks of the group, this one's included, from their host tensors to `target`.
 */
export function gatherFromHosts(
  draft: Draft,
  c: CollectiveName,
  io: {
    host: Tensor;
    /** What the host tensor, and what travels, is stored as. */
    type: FloatType;
    target: Range;
    /** What the gathered unit is stored as. */
    used: FloatType;
    sharding: Sharding;
    after: readonly number[];
    extraReads: number;
  },
): void {
  const sharding = { ...io.sharding, host: io.host };
  const { group } = sharding;
  for (const [i, { begin, count }] of pieces(draft, sharding).entries()) {
    const size = dtypeBytes[io.type];
    const received = draft.tensor(`${c.name} received ${i}`, group.ranks.length * count * size, 'workspace');
    const place = group.ranks.map((_, rank) =>
      draft.dispatch(placing(io.type, io.used), [sharding.table, draft.whole(received), io.target], {
        segments: sharding.segments,
        begin,
        count,
        rank,
        sourceOffset: rank * count,
      }),
    );
    const inboxOffsets = peersIn(group).map(() => begin * size);
    const part = { tensor: io.host.id, offsetBytes: begin * size, bytes: count * size };
    const own = { part, slot: group.index };
    const region = io.host.region ?? -1;
    const { after, extraReads } = io;
    listCollect(draft, c, {
      region,
      sharding,
      inboxOffsets,
      bytes: count * size,
      received,
      place,
      own,
      after,
      extraReads,
    });
  }
}

interface GatherInput {
  readonly source: Range;
  /** What the source is stored as; float32 if left out. */
  readonly type?: FloatType;
  /** What travels and what the target is stored as; float32 if left out. */
  readonly used?: FloatType;
  readonly target: Range;
  readonly sharding: Sharding;
  /** See DraftStep. */
  readonly after?: readonly number[];
  /** Reads of each publication that the schedule does not make, and has to account for. */
  readonly extraReads?: number;
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
  return pieces(draft, io.sharding).map((piece, i) => gatherPiece(draft, c, io, piece, i, io.regions[i]));
}

/** One piece of an all-gather; with it this rank's `own` part of `source`: all of its shard with the first piece. */
function gatherPiece(
  draft: Draft,
  c: CollectiveName,
  { source, type = 'f32', used = 'f32', target, sharding, after = [], extraReads = 0 }: GatherInput,
  { begin, count }: Piece,
  index: number,
  region: number,
  own: Piece | null = index === 0 ? { begin: 0, count: sharding.shardElements } : null,
): number {
  const { group } = sharding;
  const placed = (rank: number, from: Range, fromType: FloatType, first: number, n: number, sourceOffset: number) =>
    draft.dispatch(placing(fromType, used), [sharding.table, from, target], {
      segments: sharding.segments,
      begin: first,
      count: n,
      rank,
      sourceOffset,
    });
  const bytes = count * dtypeBytes[used];
  const received = receivedTensor(draft, c, group, index, bytes);
  const mine = own ? [placed(group.index, source, type, own.begin, own.count, 0)] : [];
  const theirs = peersIn(group).map((peer, slot) =>
    placed(group.ranks.indexOf(peer), draft.whole(received), used, begin, count, slot * count),
  );
  const inboxOffsets = theirs.map(() => 0);
  const place = [...mine, ...theirs];
  return listCollect(draft, c, { region, sharding, inboxOffsets, bytes, received, place, after, extraReads });
}

interface ReduceInput {
  readonly full: Range;
  readonly target: Range;
  readonly sharding: Sharding;
  readonly reduction: Reduction;
  /** What the ranks' values travel as: as halves they must be halves already. They are added in float32. */
  readonly wire: FloatType;
}

/** Reduce-scatter: the ranks' `full` added in the canonical tree, then scaled; this rank's shard of it to `target`. */
export function reduceScatter(draft: Draft, c: CollectiveName, io: ReduceInput): void {
  for (const [i, piece] of pieces(draft, io.sharding).entries()) reducePiece(draft, c, io, piece, i, piece.begin);
}

/** One piece of a reduce-scatter, to `outOffset` elements into `target`. */
function reducePiece(
  draft: Draft,
  c: CollectiveName,
  { full, target, sharding, reduction, wire }: ReduceInput,
  { begin, count }: Piece,
  index: number,
  outOffset: number,
): void {
  const { group } = sharding;
  const peers = peersIn(group);
  const common = { segments: sharding.segments, begin, count, self: group.index };
  const bytes = count * dtypeBytes[wire];
  const packed = draft.tensor(`${c.name} packed ${index}`, peers.length * bytes, 'workspace');
  const pack = draft.dispatch(wire === 'f16' ? shardPackHalf : shardPack, [sharding.table, full, draft.whole(packed)], {
    ...common,
    ranks: peers.length,
  });
  const region = ringRegion(draft, 'reduce', packed.bytes, group);
  listPublish(draft, c, region, draft.whole(packed), pack);
  const received = receivedTensor(draft, c, group, index, bytes);
  const adding = wire === 'f16' ? withHalves(reduceTree, ['received']) : reduceTree;
  const reduce = draft.dispatch(adding, [sharding.table, full, draft.whole(received), target], {
    ...common,
    world: group.ranks.length,
    outOffset,
    scale: Math.fround(reduction.scale),
    accumulate: reduction.accumulate ? 1 : 0,
  });
  // In a peer's region, this rank's slot is its place among the ranks without that peer.
  const slotIn = (peer: number) => (group.index < group.ranks.indexOf(peer) ? group.index : group.index - 1);
  const inboxOffsets = peers.map((peer) => slotIn(peer) * bytes);
  listCollect(draft, c, { region, sharding, inboxOffsets, bytes, received, place: [reduce], after: [] });
}

/**
 * All-reduce of one round, in place: a piece's sum goes back to all ranks when pieces after it, of this tensor or the next,
 * are being reduced, so that no lane waits for the way there and back of one piece; what it needs beside `full` is pieces,
 * not a shard. `flushAllReduces` lists what is still to go back; `whenWhole` is called once all of `full` is listed.
 */
export function allReduce(
  draft: Draft,
  c: CollectiveName,
  io: Omit<ReduceInput, 'target'>,
  whenWhole: () => void,
): void {
  const { full, sharding } = io;
  const back = { ...c, name: `${c.name} reduced` };
  const list = pieces(draft, sharding);
  list.forEach((piece, i) => {
    const sum = draft.tensor(`${c.name} sum ${i}`, piece.count * 4, 'workspace');
    const source = draft.whole(sum);
    reducePiece(draft, c, { ...io, target: source }, piece, i, 0);
    draft.sumsToGiveBack.push(() => {
      const region = ringRegion(draft, 'reduced', source.bytes, sharding.group);
      listPublish(draft, back, region, source, null);
      const own = { begin: piece.begin, count: piece.count };
      gatherPiece(draft, back, { source, target: full, sharding }, piece, i, region, own);
      if (i === list.length - 1) whenWhole();
    });
    if (draft.sumsToGiveBack.length > ALL_REDUCE_AHEAD) draft.sumsToGiveBack.shift()?.();
  });
  if (list.length === 0) whenWhole();
}

/** Lists what all-reduces have still to give back. */
export function flushAllReduces(draft: Draft): void {
  for (const giveBack of draft.sumsToGiveBack.splice(0)) giveBack();
}

/**
 * The second half of an all-reduce: the shards that a reduce-scatter left in `reduced`, gathered into `target`. Piece by
 * piece: the pieces take turns in a ring of regions, so one must be read before the ring comes round.
 */
export function gatherReduced(
  draft: Draft,
  c: CollectiveName,
  io: { reduced: Tensor; target: Range; sharding: Sharding },
): void {
  const { reduced, target, sharding } = io;
  const back = { ...c, name: `${c.name} reduced` };
  const gathering = { source: draft.whole(reduced), target, sharding };
  for (const [i, piece] of pieces(draft, sharding).entries()) {
    const region = ringRegion(draft, 'reduced', piece.count * 4, sharding.group);
    const source = { tensor: reduced.id, offsetBytes: piece.begin * 4, bytes: piece.count * 4 };
    listPublish(draft, back, region, source, null);
    gatherPiece(draft, back, gathering, piece, i, region);
  }
}

function listCollect(
  draft: Draft,
  c: CollectiveName,
  io: {
    region: number;
    sharding: Sharding;
    inboxOffsets: readonly number[];
    /** From each source. */
    bytes: number;
    received: Tensor;
    place: readonly Dispatch[];
    own?: { part: Range; slot: number };
    extraReads?: number;
    after: readonly number[];
  },
): number {
  const peers = peersIn(io.sharding.group);
  const sources = peers.length + (io.own ? 1 : 0);
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
      peers,
      inboxOffsets: io.inboxOffsets,
      bytesPerPeer: io.bytes,
      own: io.own ?? null,
      extraReads: io.extraReads ?? 0,
      linkGBps: io.sharding.linkGBps,
      staging: draft.stagingSlot('upload', 'comm', sources * io.bytes),
      received: draft.whole(io.received),
      place: io.place,
    },
  });
}

function receivedTensor(draft: Draft, c: CollectiveName, group: RankGroup, piece: number, bytes: number): Tensor {
  return draft.tensor(`${c.name} received ${piece}`, (group.ranks.length - 1) * bytes, 'workspace');
}

/** Regions that several collectives of a group take in turn; each is as large as its largest use. */
function ringRegion(draft: Draft, name: string, bytes: number, group: RankGroup): number {
  // Rows and columns of a square mesh are equally many: a ring is of the ranks that read each other.
  const ring = `${name} ${group.partition[0].join('-')}`;
  const uses = draft.ringUses.get(ring) ?? 0;
  draft.ringUses.set(ring, uses + 1);
  const turn = `${ring} ring ${uses % RING_REGIONS}`;
  const known = draft.regions.findIndex((r) => r.name === turn);
  if (known < 0) return draft.region(turn, bytes, 1, group);
  draft.regions[known] = { ...draft.regions[known], bytes: Math.max(draft.regions[known].bytes, bytes) };
  return known;
}
