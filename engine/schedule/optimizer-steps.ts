import type { OptimizerConfig } from '../config.ts';
import { TREE_SUM_INPUTS, treeSum } from '../ops/norm/tree-sum.ts';
import { stepAdvance } from '../ops/optimizer/step-advance.ts';
import { stepControl } from '../ops/optimizer/step-control.ts';
import { stepControlScaled } from '../ops/optimizer/step-control-scaled.ts';
import { stepNorm } from '../ops/optimizer/step-norm.ts';
import type { Draft } from './draft.ts';
import type { NormRows } from './norm-rows.ts';
import type { OffloadedUpdates } from './offloaded-updates.ts';
import type { Tensor } from './schedule.ts';
import type { StoredGroup } from './storage.ts';
import { listOptimizerKernel, listUpdate, type OptimizerVisit, type UpdateOptions } from './updates.ts';

export interface OptimizerInput extends UpdateOptions {
  readonly draft: Draft;
  readonly stopOnNonFinite: boolean;
  readonly steps: number;
  readonly groups: readonly StoredGroup[];
  readonly control: Tensor;
  /** The reduced gradients of each group; none for a frozen one. */
  readonly reduced: readonly (Tensor | undefined)[];
  readonly rows: NormRows;
  /** With offload: what updates the groups, and whether it has done so in backward. */
  readonly offloaded: { readonly updates: OffloadedUpdates; readonly inBackward: boolean } | null;
}

/**
 * The end of a step: the global norm, the decision whether to step, the updates. The norm is one sum of squares per row of
 * dimension 0, each within its row in one order, then all rows in state_dict order by one tree: the same additions
 * whatever the strategy, so the same bits.
 */
export function listOptimizer(input: OptimizerInput): void {
  const { draft, control, rows, offloaded } = input;
  const sums = draft.nextVisit();
  input.groups.forEach((_, index) => {
    const gradients = input.reduced[index];
    // With offload they were summed while they were on the device.
    if (gradients && !offloaded) rows.listLocal(index, gradients, sums, 'optimizer');
  });
  const all = rows.listGather(sums);
  const where = { visit: draft.nextVisit(), unit: 'root', phase: 'optimizer' } as const;
  const total = listTreeSum(draft, where, all);
  const controlled = [draft.whole(control), draft.whole(total)];
  if (offloaded?.inBackward) {
    listOptimizerKernel(draft, where, stepNorm, controlled, {});
    return;
  }
  const { table, entries } = correctionsOf(input);
  listOptimizerKernel(
    draft,
    where,
    input.precision.scalesLoss ? stepControlScaled : stepControl,
    [...controlled, table],
    {
      entries,
      stopOnNonFinite: input.stopOnNonFinite ? 1 : 0,
      maxNorm: input.clipping.maxNorm ?? 0,
    },
  );
  input.groups.forEach((group, index) => {
    const gradients = input.reduced[index];
    if (!gradients) return;
    if (offloaded) {
      offloaded.updates.list(index, null, 'optimizer');
      return;
    }
    const tensors = [group.parameters, ...Object.values(group.state), gradients, control];
    const all = { begin: 0, n: group.layout.shardElements };
    const operands = tensors.map((t) => draft.whole(t));
    listUpdate(draft, input, group, all, operands, { ...where, unit: group.group.name });
  });
}

/** Before the first update of a step whose updates run in backward: t advances, unless the loss is not finite. */
export function listAdvance(input: Pick<OptimizerInput, 'draft' | 'control' | 'optimizer' | 'steps'>): void {
  const { draft, control } = input;
  const { table, entries } = correctionsOf(input);
  const where = { visit: draft.nextVisit(), unit: 'root', phase: 'backward' } as const;
  listOptimizerKernel(draft, where, stepAdvance, [draft.whole(control), table], { entries });
}

function correctionsOf({ draft, optimizer, steps }: Pick<OptimizerInput, 'draft' | 'optimizer' | 'steps'>) {
  const corrections = biasCorrections(optimizer, steps);
  const table = draft.whole(draft.constant('bias corrections', corrections.byteLength, corrections));
  return { table, entries: corrections.length / 2 };
}

function listTreeSum(draft: Draft, where: OptimizerVisit, rows: Tensor): Tensor {
  let level = rows;
  for (let depth = 0; depth === 0 || level.bytes > 4; depth++) {
    const n = level.bytes / 4;
    const next = draft.tensor(`norm level ${depth}`, Math.ceil(n / TREE_SUM_INPUTS) * 4, 'workspace');
    const params = { n, xOffset: 0, outOffset: 0 };
    listOptimizerKernel(draft, where, treeSum, [draft.whole(level), draft.whole(next)], params);
    level = next;
  }
  return level;
}

/** Beyond this many steps both corrections of usual betas round to 1 in float32. */
const MOST_CORRECTIONS = 200_000;

/**
 * Row t: 1 − β1^t and √(1 − β2^t) (Kingma and Ba 2014, section 3), computed in float64. The table ends where both are 1
 * in float32, or with the run.
 */
function biasCorrections(optimizer: OptimizerConfig, steps: number): Float32Array<ArrayBuffer> {
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
