import type { OptimizerConfig } from '../config.ts';
import type { Model } from '../model/model.ts';
import { elementsOf } from '../ops/graph.ts';
import { SEGMENT_COLUMNS, type ShardLayout, shardLayout, shardTable } from '../ops/shard/layout.ts';
import type { Sharding } from './collectives.ts';
import type { Draft } from './draft.ts';
import type { Range, Tensor } from './schedule.ts';
import type { Group, StrategyPlan } from './strategies/strategy.ts';

/** A group with its layout and the tensors in which a rank keeps it from step to step. */
export interface StoredGroup {
  readonly group: Group;
  readonly layout: ShardLayout;
  /** This rank's parameters: its shard, or all of them. */
  readonly parameters: Tensor;
  /** Optimizer state by PyTorch's name, laid out as the parameters are. */
  readonly state: Readonly<Record<string, Tensor>>;
  /** The segment table of `layout`. */
  readonly table: Range;
  /** How its gradients travel; null when there is nobody to travel to. */
  readonly sharding: Sharding | null;
}

/** First row of each parameter in the one order of all rows by which a norm is added: state_dict order. */
export function rowOrder(model: Model): { rowStart: ReadonlyMap<string, number>; totalRows: number } {
  const rowStart = new Map<string, number>();
  let totalRows = 0;
  for (const { name, shape } of model.parameters) {
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

/** Makes the tensors of every group. */
export function storeGroups(
  draft: Draft,
  model: Model,
  strategy: StrategyPlan,
  optimizer: OptimizerConfig,
): StoredGroup[] {
  const shapes = new Map(model.parameters.map((p) => [p.name, p.shape]));
  const { rowStart } = rowOrder(model);
  const align = draft.alignElements();
  return strategy.groups.map((group): StoredGroup => {
    const parameters = group.parameters.map((name) => {
      const [rows = 1, ...rest] = shapes.get(name)!;
      return { name, rows, rowLength: elementsOf(rest), rowStart: rowStart.get(name)! };
    });
    // What kernels bind as it is needs the device's alignment; what only travels, 16 bytes.
    const layout = strategy.sharded
      ? shardLayout(parameters, draft.world, undefined, align)
      : shardLayout(parameters, 1, align);
    const bytes = layout.shardElements * 4;
    const state = optimizerStateNames(optimizer).map(
      (name) => [name, draft.state(`${name} ${group.name}`, bytes, 'optimizer')] as const,
    );
    const table = constantTable(draft, `table ${group.name}`, layout);
    return {
      group,
      layout,
      parameters: draft.state(`parameters ${group.name}`, bytes, 'parameters'),
      state: Object.fromEntries(state),
      table,
      sharding: strategy.sharded ? shardingOf(layout, table) : replicatedSharding(draft, group, layout),
    };
  });
}

/** The segment table of a layout as a tensor filled before step 0. */
export function constantTable(draft: Draft, name: string, layout: ShardLayout): Range {
  const bytes = layout.segments.length * SEGMENT_COLUMNS * 4;
  return draft.whole(draft.constant(name, bytes, shardTable(layout)));
}

export function shardingOf(layout: ShardLayout, table: Range): Sharding {
  return { table, segments: layout.segments.length, shardElements: layout.shardElements };
}

/** A bucket travels as one row of elements cut into equal chunks, whatever parameters it holds. */
function replicatedSharding(draft: Draft, group: Group, layout: ShardLayout): Sharding | null {
  if (draft.world === 1) return null;
  const wire = shardLayout([{ name: group.name, rows: layout.fullElements, rowLength: 1 }], draft.world);
  return shardingOf(wire, constantTable(draft, `wire table ${group.name}`, wire));
}
