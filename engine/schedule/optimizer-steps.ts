import type { OptimizerConfig } from '../config.ts';
import type { Model } from '../model/model.ts';
import { matchesPattern } from '../model/name-pattern.ts';
import type { Kernel, Params } from '../ops/kernel.ts';
import { rowSquareSums } from '../ops/norm/row-square-sums.ts';
import { TREE_SUM_INPUTS, treeSum } from '../ops/norm/tree-sum.ts';
import { adam } from '../ops/optimizer/adam.ts';
import { sgd } from '../ops/optimizer/sgd.ts';
import { sgdPlain } from '../ops/optimizer/sgd-plain.ts';
import { stepControl } from '../ops/optimizer/step-control.ts';
import { rowSumLayout, type ShardLayout } from '../ops/shard/layout.ts';
import { unshard } from '../ops/shard/unshard.ts';
import { gather, publishShard } from './collectives.ts';
import type { Draft } from './draft.ts';
import { shardGroup } from './mesh.ts';
import type { Range, Tensor } from './schedule.ts';
import { constantTable, rowOrder, type StoredGroup, shardingOf } from './storage.ts';
import type { StrategyPlan } from './strategies/strategy.ts';

/** How gradients are clipped before the update: to a global norm or each element to a value, or not at all. */
export interface Clipping {
  readonly maxNorm: number | null;
  readonly maxValue: number | null;
}

export interface OptimizerInput {
  readonly draft: Draft;
  readonly program: { readonly model: Model };
  readonly strategy: StrategyPlan;
  readonly optimizer: OptimizerConfig;
  readonly clipping: Clipping;
  readonly stopOnNonFinite: boolean;
  readonly steps: number;
  readonly groups: readonly StoredGroup[];
  readonly control: Tensor;
  /** The reduced gradients of each group; none for a frozen one. */
  readonly reduced: readonly (Tensor | undefined)[];
}

/** A group that is trained, with its reduced gradients. */
interface TrainedGroup extends StoredGroup {
  readonly gradients: Tensor;
}

/**
 * The end of a step: the global norm, the decision whether to step, the updates. The norm is one sum of squares per row of
 * dimension 0, each within its row in one order, then all rows in state_dict order by one tree: the same additions
 * whatever the strategy, so the same bits.
 */
export function listOptimizer(input: OptimizerInput): void {
  const { draft, control, optimizer, clipping } = input;
  const trained = input.groups.flatMap((group, i): TrainedGroup[] => {
    const gradients = input.reduced[i];
    return gradients ? [{ ...group, gradients }] : [];
  });
  const rows = listRows(input, trained);
  const visit = draft.nextVisit();
  const compute = (kernel: Kernel, operands: readonly Range[], params: Params, unit = 'root') =>
    listCompute(draft, visit, unit, kernel, operands, params);
  const total = listTreeSum(draft, compute, rows);
  const corrections = biasCorrections(optimizer, input.steps);
  const table = draft.constant('bias corrections', corrections.byteLength, corrections);
  compute(stepControl, [draft.whole(control), draft.whole(total), draft.whole(table)], {
    entries: corrections.length / 2,
    stopOnNonFinite: input.stopOnNonFinite ? 1 : 0,
    maxNorm: clipping.maxNorm ?? 0,
  });
  for (const stored of trained) {
    const tensors = [stored.parameters, ...Object.values(stored.state), stored.gradients, control];
    for (const run of updateRuns(stored.layout, optimizer)) {
      const { kernel, params } = updateOf(optimizer, run, clipping);
      compute(
        kernel,
        tensors.map((t) => draft.whole(t)),
        params,
        stored.group.name,
      );
    }
  }
}

function listCompute(
  draft: Draft,
  visit: number,
  unit: string,
  kernel: Kernel,
  operands: readonly Range[],
  params: Params,
): void {
  draft.list({
    kind: 'optimizer',
    lane: 'compute',
    phase: 'optimizer',
    label: kernel.name,
    unit,
    visit,
    action: { type: 'dispatch', dispatch: draft.dispatch(kernel, operands, params) },
  });
}

/** The sums of squares of all rows of the model, on every rank: each sums its own rows, then all gather. */
function listRows({ draft, program, strategy }: OptimizerInput, groups: readonly TrainedGroup[]): Tensor {
  const { totalRows } = rowOrder(program.model);
  const align = draft.alignElements();
  const visit = draft.nextVisit();
  const starts: number[] = [];
  let localRows = 0;
  for (const { layout } of groups) {
    starts.push(localRows);
    localRows += Math.ceil(layout.localRows / align) * align;
  }
  const local = draft.tensor('norm local rows', localRows * 4, 'workspace');
  const place = shardGroup(strategy.mesh, draft.rank);
  groups.forEach(({ group, layout, table, gradients }, i) => {
    const rows = { tensor: local.id, offsetBytes: starts[i] * 4, bytes: layout.localRows * 4 };
    const params = {
      segments: layout.segments.length,
      totalRows: layout.localRows,
      rank: place.index,
    };
    listCompute(draft, visit, group.name, rowSquareSums, [table, draft.whole(gradients), rows], params);
  });
  const layout = allRows(groups, starts, localRows, totalRows);
  const table = constantTable(draft, 'table norm rows', layout);
  const sharding = shardingOf(layout, table, place);
  const all = draft.tensor('norm rows', totalRows * 4, 'workspace');
  if (strategy.mesh.shard === 1) {
    const params = { segments: sharding.segments, begin: 0, count: localRows, rank: 0, sourceOffset: 0 };
    listCompute(draft, visit, 'root', unshard, [table, draft.whole(local), draft.whole(all)], params);
    return all;
  }
  const name = { kind: 'all-gather', unit: 'root', phase: 'optimizer', name: 'norm rows' } as const;
  const regions = publishShard(draft, name, draft.whole(local), sharding, 1);
  gather(draft, name, { source: draft.whole(local), target: draft.whole(all), sharding, regions });
  return all;
}

/** The layout that takes each rank's vector of row sums, group after group, to the order of all rows. */
function allRows(
  groups: readonly StoredGroup[],
  starts: readonly number[],
  localRows: number,
  totalRows: number,
): ShardLayout {
  const segments = groups.flatMap(({ layout }, i) =>
    rowSumLayout(layout).segments.map((s) => ({ ...s, shardOffset: s.shardOffset + starts[i] })),
  );
  return { ...groups[0].layout, segments, shardElements: localRows, fullElements: totalRows, localRows };
}

function listTreeSum(
  draft: Draft,
  compute: (kernel: Kernel, operands: readonly Range[], params: Params) => void,
  rows: Tensor,
): Tensor {
  let level = rows;
  for (let depth = 0; depth === 0 || level.bytes > 4; depth++) {
    const n = level.bytes / 4;
    const next = draft.tensor(`norm level ${depth}`, Math.ceil(n / TREE_SUM_INPUTS) * 4, 'workspace');
    compute(treeSum, [draft.whole(level), draft.whole(next)], { n, xOffset: 0, outOffset: 0 });
    level = next;
  }
  return level;
}

/** Neighbouring elements of a group that are updated in one dispatch: those with the same options. */
interface UpdateRun {
  readonly offset: number;
  readonly n: number;
  readonly lr: number;
  readonly weightDecay: number;
}

/**
 * One run for all neighbours with the same learning rate and decay; with `foreach` off, one for each parameter. A
 * parameter's options are those of the first optimizer.groups entry whose pattern fits its name, else the optimizer's own.
 */
function updateRuns(layout: ShardLayout, optimizer: OptimizerConfig): UpdateRun[] {
  const runs: UpdateRun[] = [];
  layout.segments.forEach((segment, i) => {
    const end = layout.segments[i + 1]?.shardOffset ?? layout.shardElements;
    const { lr, weightDecay } = optionsOf(optimizer, segment.name);
    const last = runs[runs.length - 1];
    if (optimizer.foreach && last && last.lr === lr && last.weightDecay === weightDecay)
      runs[runs.length - 1] = { ...last, n: end - last.offset };
    else runs.push({ offset: segment.shardOffset, n: end - segment.shardOffset, lr, weightDecay });
  });
  return runs;
}

/** Learning rate and weight decay of a parameter. */
export function optionsOf(optimizer: OptimizerConfig, name: string): { lr: number; weightDecay: number } {
  const group = optimizer.groups.find(({ match }) => matchesPattern(match, name));
  return { lr: group?.lr ?? optimizer.lr, weightDecay: group?.weightDecay ?? optimizer.weightDecay };
}

function updateOf(optimizer: OptimizerConfig, run: UpdateRun, clipping: Clipping): { kernel: Kernel; params: Params } {
  const common = { ...run, clipValue: clipping.maxValue ?? 0 };
  if (optimizer.kind === 'sgd') {
    const { momentum, nesterov } = optimizer;
    if (momentum === 0) return { kernel: sgdPlain, params: common };
    return { kernel: sgd, params: { ...common, momentum, nesterov: nesterov ? 1 : 0 } };
  }
  const [beta1, beta2] = optimizer.betas;
  const decoupled = optimizer.kind === 'adamw' ? 1 : 0;
  const rest = { oneMinusBeta1: 1 - beta1, oneMinusBeta2: 1 - beta2, eps: optimizer.eps };
  return { kernel: adam, params: { ...common, beta1, beta2, ...rest, decoupled } };
}

/** Beyond this many steps both corrections of usual betas round to 1 in float32. */
const MOST_CORRECTIONS = 200_000;

/**
 * Row t: 1 − β1^t and √(1 − β2^t) (Kingma and Ba 2014, section 3), computed in float64. The table ends where both are 1
 * in float32, or with the run.
 */
export function biasCorrections(optimizer: OptimizerConfig, steps: number): Float32Array<ArrayBuffer> {
  if (optimizer.kind === 'sgd') return new Float32Array([0, 0, 1, 1]);
  const [beta1, beta2] = optimizer.betas;
  const rows: number[] = [0, 0];
  for (let t = 1; t <= Math.min(Math.max(steps, 1), MOST_CORRECTIONS); t++) {
    const row = [1 - beta1 ** t, Math.sqrt(1 - beta2 ** t)].map(Math.fround);
    rows.push(...row);
    if (row[0] === 1 && row[1] === 1) break;
  }
  return new Float32Array(rows);
}
