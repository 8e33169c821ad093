/**
 * How ranks stand to each other: `replicate` rows of `shard` consecutive ranks. A row keeps one copy of the model in
 * shards; equal places of all rows keep equal shards. DDP is one rank a row, FULL_SHARD one row.
 */
export interface Mesh {
  readonly replicate: number;
  readonly shard: number;
}

/** The ranks of one collective, and this rank's place among them. */
export interface RankGroup {
  readonly ranks: readonly number[];
  readonly index: number;
  /** All groups of this kind: which ranks read each other. */
  readonly partition: readonly (readonly number[])[];
}

/** The row of a rank. */
export function shardGroup({ replicate, shard }: Mesh, rank: number): RankGroup {
  const partition = range(replicate).map((row) => range(shard).map((column) => row * shard + column));
  return groupIn(partition, rank);
}

/** The ranks that keep the same shard as a rank. */
export function replicaGroup({ replicate, shard }: Mesh, rank: number): RankGroup {
  const partition = range(shard).map((column) => range(replicate).map((row) => row * shard + column));
  return groupIn(partition, rank);
}

/** The others of a group, in rank order. */
export function peersIn(group: RankGroup): readonly number[] {
  return group.ranks.filter((_, index) => index !== group.index);
}

function groupIn(partition: readonly (readonly number[])[], rank: number): RankGroup {
  const ranks = partition.find((group) => group.includes(rank))!;
  return { ranks, index: ranks.indexOf(rank), partition };
}

function range(length: number): number[] {
  return Array.from({ length }, (_, i) => i);
}
