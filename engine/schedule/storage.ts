import type { OptimizerConfig } from '../config.ts';
import type { Model } from '../model/model.ts';
import { elementsOf } from '../ops/graph.ts';
import { dtypeBytes } from '../ops/kernel.ts';
import { SEGMENT_COLUMNS, type ShardLayout, shardLayout, shardTable } from '../ops/shard/layout.ts';
import { hostShardRegion, type Sharding } from './collectives.ts';
import type { Draft } from './draft.ts';
import { type Mesh, type RankGroup, replicaGroup, shardGroup } from './mesh.ts';
import type { Precision } from './precision.ts';
import type { Range, Tensor } from './schedule.ts';
import type { Group, StrategyPlan } from './strategies/strategy.ts';

/** A group with its layout and the tensors in which a rank keeps it from step to step. */
export interface StoredGroup {
  readonly group: Group;
  readonly layout: ShardLayout;
  /** This rank's parameters: its shard, or all of them. */
  readonly parameters: Tensor;
  /** Optimizer state by PyTorch's name, laid out as the parameters are; none for a frozen group. */
  readonly state: Readonly<Record<string, Tensor>>;
  /** The segment table of `layout`. */
  readonly table: Range;
  /** How shards travel within a row of the mesh; null when each rank keeps all. */
  readonly shards: Sharding | null;
  /** How gradients travel between the rows; null when there is one row. */
  readonly replicas: Sharding | null;
  /** With offload, where the reduced gradients are kept if the update has to wait; parameters and state are on the host too. */
  readonly hostGradients: Tensor | null;
}

/** What is kept on the host, and why. */
export interface Offload {
  /** How often a step gathers a group. */
  readonly gathersOf: (group: number) => number;
  /** Whether gradients go to the host too, until all are known. */
  readonly keepsGradients: boolean;
}

/**
 * First row of each trained parameter in the one order of all rows by which a norm is added: state_dict order. A frozen
 * parameter has no gradient and no row.
 */
export function rowOrder(
  model: Model,
  groups: readonly Group[],
): { rowStart: ReadonlyMap<string, number>; totalRows: number } {
  const trained = new Set(groups.flatMap((group) => (group.trainable ? group.parameters : [])));
  const rowStart = new Map<string, number>();
  let totalRows = 0;
  for (const { name, shape } of model.parameters) {
    if (!trained.has(name)) continue;
    rowStart.set(name, totalRows);
    totalRows += shape[0] ?? 1;
  }
  return { rowStart, totalRows };
}

/** Optimizer state that PyTorch keeps per element of a parameter. */
export function optimizerStateNames(optimizer: OptimizerConfig): readonly string[] {
  if (optimizer.kind !== 'sgd') return ['exp_avg', 'exp_avg_sq'];
  return optimizer.momentum > 0 ? ['momentum_buffer'] : [];
}

/**
 * Most parts of a quarter of a staging slot that are kept in mapped buffers, two of them or more in each: some drivers make
 * no more than 4,096 allocations.
 */
const MOST_MAPPED_PARTS = 7_500;

/** Makes the tensors of every group. `linkGBps`: a slower link between the rows of the mesh. */
export function storeGroups(
  draft: Draft,
  model: Model,
  { mesh, groups }: Pick<StrategyPlan, 'mesh' | 'groups'>,
  optimizer: OptimizerConfig,
  linkGBps: number | null,
  offload: Offload | null,
  { kept, used }: Precision,
): StoredGroup[] {
  const shapes = new Map(model.parameters.map((p) => [p.name, p.shape]));
  const { rowStart } = rowOrder(model, groups);
  const align = draft.alignBytes() / dtypeBytes[used];
  const travelAlign = 16 / dtypeBytes[used];
  let mappedParts = 0;
  return groups.map((group, index): StoredGroup => {
    const parameters = group.parameters.map((name) => {
      const [rows = 1, ...rest] = shapes.get(name)!;
      return { name, rows, rowLength: elementsOf(rest), rowStart: rowStart.get(name) ?? 0 };
    });
    // What kernels bind as it is needs the device's alignment; what only travels, 16 bytes.
    const layout =
      mesh.shard > 1 ? shardLayout(parameters, mesh.shard, travelAlign, align) : shardLayout(parameters, 1, align);
    const bytes = layout.shardElements * dtypeBytes[kept];
    const table = constantTable(draft, `table ${group.name}`, layout);
    const isSharded = mesh.shard > 1 || offload !== null;
    const shards = isSharded ? shardingOf(layout, table, shardGroup(mesh, draft.rank)) : null;
    const keep = (name: string, category: 'parameters' | 'optimizer' | 'gradients', region?: number) => {
      if (!offload) return draft.state(name, bytes, category, kept);
      if (region !== undefined) return draft.host(name, bytes, category, kept, { region });
      // What is frozen is never kept again.
      if (!group.trainable) return draft.host(name, bytes, category, kept);
      mappedParts += Math.ceil(bytes / (draft.profile.stagingSlotBytes / 4));
      return draft.host(name, bytes, category, kept, mappedParts > MOST_MAPPED_PARTS ? {} : { mapped: true });
    };
    const region =
      offload && shards && shards.group.ranks.length > 1
        ? hostShardRegion(draft, `shard ${group.name}`, shards, offload.gathersOf(index), kept)
        : undefined;
    const names = group.trainable ? optimizerStateNames(optimizer) : [];
    return {
      group,
      layout,
      parameters: keep(`parameters ${group.name}`, 'parameters', region),
      state: Object.fromEntries(names.map((name) => [name, keep(`${name} ${group.name}`, 'optimizer')] as const)),
      table,
      shards,
      replicas: group.trainable ? replicasOf(draft, mesh, group, layout, linkGBps) : null,
      hostGradients: offload?.keepsGradients && group.trainable ? keep(`gradients ${group.name}`, 'gradients') : null,
    };
  });
}

/** The segment table of a layout as a tensor filled before step 0. */
export function constantTable(draft: Draft, name: string, layout: ShardLayout): Range {
  const bytes = layout.segments.length * SEGMENT_COLUMNS * 4;
  return draft.whole(draft.constant(name, bytes, shardTable(layout)));
}

export function shardingOf(
  layout: ShardLayout,
  table: Range,
  group: RankGroup,
  linkGBps: number | null = null,
): Sharding {
  return { group, table, segments: layout.segments.length, shardElements: layout.shardElements, linkGBps };
}

/** Between rows, what a rank keeps travels as one row of elements cut into equal chunks, whatever parameters it holds. */
function replicasOf(
  draft: Draft,
  mesh: Mesh,
  group: Group,
  layout: ShardLayout,
  linkGBps: number | null,
): Sharding | null {
  if (mesh.replicate === 1) return null;
  const wire = shardLayout([{ name: group.name, rows: layout.shardElements, rowLength: 1 }], mesh.replicate);
  const table = constantTable(draft, `wire table ${group.name}`, wire);
  return shardingOf(wire, table, replicaGroup(mesh, draft.rank), linkGBps);
}
