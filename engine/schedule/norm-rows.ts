import type { Model } from '../model/model.ts';
import { withHalves } from '../ops/half/with-halves.ts';
import { rowSquareSums } from '../ops/norm/row-square-sums.ts';
import { rowSumLayout, type ShardLayout } from '../ops/shard/layout.ts';
import { unshard } from '../ops/shard/unshard.ts';
import { gather, publishShard } from './collectives.ts';
import type { Draft } from './draft.ts';
import { type Mesh, shardGroup } from './mesh.ts';
import type { FloatType } from './precision.ts';
import type { StepPhase, Tensor } from './schedule.ts';
import { constantTable, rowOrder, type StoredGroup, shardingOf } from './storage.ts';

/**
 * The sums of squares of the gradients' rows, in the one order of all rows of the model: each rank sums the rows that it
 * holds, group after group, then all gather.
 */
export class NormRows {
  private readonly starts: number[] = [];
  private readonly localRows: number;
  private local: Tensor | null = null;

  constructor(
    private readonly draft: Draft,
    private readonly model: Model,
    private readonly mesh: Mesh,
    private readonly groups: readonly StoredGroup[],
    /** What the reduced gradients are stored as. */
    private readonly type: FloatType,
  ) {
    const align = draft.alignBytes() / 4;
    let rows = 0;
    for (const { group, layout } of groups) {
      this.starts.push(rows);
      if (group.trainable) rows += Math.ceil(layout.localRows / align) * align;
    }
    this.localRows = rows;
  }

  /** Sums this rank's rows of a group's reduced gradients. */
  listLocal(index: number, gradients: Tensor, visit: number, phase: StepPhase): void {
    const { draft } = this;
    const { group, layout, table } = this.groups[index];
    this.local ??= draft.tensor('norm local rows', this.localRows * 4, 'workspace');
    const rows = { tensor: this.local.id, offsetBytes: this.starts[index] * 4, bytes: layout.localRows * 4 };
    const { index: rank } = shardGroup(this.mesh, draft.rank);
    const params = { segments: layout.segments.length, totalRows: layout.localRows, rank };
    const kernel = this.type === 'f16' ? withHalves(rowSquareSums, ['shard']) : rowSquareSums;
    draft.list({
      kind: 'optimizer',
      lane: 'compute',
      phase,
      label: rowSquareSums.name,
      unit: group.name,
      visit,
      action: {
        type: 'dispatch',
        dispatch: draft.dispatch(kernel, [table, draft.whole(gradients), rows], params),
      },
    });
  }

  /** Puts the sums of all ranks together. Every trained group has been summed. */
  listGather(visit: number): Tensor {
    const { draft, local } = this;
    const groups = this.groups.map(({ group }) => group);
    const { totalRows } = rowOrder(this.model, groups);
    const layout = this.allRows(totalRows);
    const table = constantTable(draft, 'table norm rows', layout);
    const sharding = shardingOf(layout, table, shardGroup(this.mesh, draft.rank));
    const all = draft.tensor('norm rows', totalRows * 4, 'workspace');
    const c = { kind: 'all-gather', unit: 'root', phase: 'optimizer', name: 'norm rows' } as const;
    if (this.mesh.shard > 1) {
      const regions = publishShard(draft, c, { source: draft.whole(local!), type: 'f32', wire: 'f32' }, sharding, 1);
      gather(draft, c, { source: draft.whole(local!), target: draft.whole(all), sharding, regions });
      return all;
    }
    const params = { segments: sharding.segments, begin: 0, count: this.localRows, rank: 0, sourceOffset: 0 };
    draft.list({
      kind: 'optimizer',
      lane: 'compute',
      phase: 'optimizer',
      label: unshard.name,
      unit: 'root',
      visit,
      action: {
        type: 'dispatch',
        dispatch: draft.dispatch(unshard, [table, draft.whole(local!), draft.whole(all)], params),
      },
    });
    return all;
  }

  /** The layout that takes each rank's vector of row sums to the order of all rows. */
  private allRows(totalRows: number): ShardLayout {
    const { localRows } = this;
    const segments = this.groups.flatMap(({ group, layout }, i) =>
      group.trainable
        ? rowSumLayout(layout).segments.map((s) => ({ ...s, shardOffset: s.shardOffset + this.starts[i] }))
        : [],
    );
    return { ...this.groups[0].layout, segments, shardElements: localRows, fullElements: totalRows, localRows };
  }
}
