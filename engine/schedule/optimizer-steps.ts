import type { OptimizerConfig } from '../config.ts';
import { matchesPattern } from '../model/name-pattern.ts';
import type { Kernel, Params } from '../ops/kernel.ts';
import { dtypeBytes } from '../ops/kernel.ts';
import { TREE_SUM_INPUTS, treeSum } from '../ops/norm/tree-sum.ts';
import { adam, adamHalf } from '../ops/optimizer/adam.ts';
import { sgd, sgdHalf } from '../ops/optimizer/sgd.ts';
import { sgdPlain, sgdPlainHalf } from '../ops/optimizer/sgd-plain.ts';
import { stepControl } from '../ops/optimizer/step-control.ts';
import { stepControlScaled } from '../ops/optimizer/step-control-scaled.ts';
import type { ShardLayout } from '../ops/shard/layout.ts';
import type { Draft } from './draft.ts';
import type { NormRows } from './norm-rows.ts';
import { listHostCopy } from './offload.ts';
import type { Precision } from './precision.ts';
import type { HostCopy, Range, Tensor } from './schedule.ts';
import type { StoredGroup } from './storage.ts';

/** How gradients are clipped before the update: to a global norm or each element to a value, or not at all. */
export interface Clipping {
  readonly maxNorm: number | null;
  readonly maxValue: number | null;
}

export interface OptimizerInput {
  readonly draft: Draft;
  readonly optimizer: OptimizerConfig;
  readonly clipping: Clipping;
  readonly precision: Precision;
  readonly stopOnNonFinite: boolean;
  readonly steps: number;
  readonly groups: readonly StoredGroup[];
  readonly control: Tensor;
  /** The reduced gradients of each group; none for a frozen one. */
  readonly reduced: readonly (Tensor | undefined)[];
  readonly rows: NormRows;
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
  const { draft, control, optimizer, clipping, rows } = input;
  const sums = draft.nextVisit();
  input.groups.forEach(({ hostGradients }, index) => {
    const gradients = input.reduced[index];
    // With offload they were summed before they were stored.
    if (gradients && !hostGradients) rows.listLocal(index, gradients, sums, 'optimizer');
  });
  const all = rows.listGather(sums);
  const visit = draft.nextVisit();
  const compute = (kernel: Kernel, operands: readonly Range[], params: Params) =>
    listCompute(draft, visit, 'root', kernel, operands, params);
  const total = listTreeSum(draft, compute, all);
  const corrections = biasCorrections(optimizer, input.steps);
  const table = draft.constant('bias corrections', corrections.byteLength, corrections);
  const decide = input.precision.scalesLoss ? stepControlScaled : stepControl;
  compute(decide, [draft.whole(control), draft.whole(total), draft.whole(table)], {
    entries: corrections.length / 2,
    stopOnNonFinite: input.stopOnNonFinite ? 1 : 0,
    maxNorm: clipping.maxNorm ?? 0,
  });
  input.groups.forEach((group, index) => {
    const gradients = input.reduced[index];
    if (!gradients) return;
    if (group.hostGradients) listOffloadedUpdate(input, group, group.hostGradients);
    else listUpdate(input, visit, { ...group, gradients });
  });
}

function listUpdate(
  { draft, control, optimizer, clipping, precision }: OptimizerInput,
  visit: number,
  stored: TrainedGroup,
): void {
  const tensors = [stored.parameters, ...Object.values(stored.state), stored.gradients, control];
  const operands = tensors.map((t) => draft.whole(t));
  for (const run of updateRuns(stored.layout, optimizer)) {
    const { kernel, params } = updateOf(optimizer, run, clipping, precision);
    listCompute(draft, visit, stored.group.name, kernel, operands, params);
  }
}

/**
 * The update of a group on the host: it streams through the device in windows, the next fetched while one is computed, so
 * that the links are kept busy (ZeRO-Offload, Ren et al. 2021, with the update left to the device).
 */
function listOffloadedUpdate(input: OptimizerInput, stored: StoredGroup, hostGradients: Tensor): void {
  const { draft, control, optimizer, clipping, precision } = input;
  const size = dtypeBytes[precision.kept];
  const { group, layout } = stored;
  const kept = [stored.parameters, ...Object.values(stored.state)];
  const hosts = [...kept, hostGradients];
  const most = Math.max(4, Math.floor(draft.profile.stagingSlotBytes / size / hosts.length / 4) * 4);
  const windows: { begin: number; n: number }[] = [];
  for (let begin = 0; begin < layout.shardElements; begin += most)
    windows.push({ begin, n: Math.min(most, layout.shardElements - begin) });
  const part = (host: Tensor, device: Tensor, { begin, n }: { begin: number; n: number }): HostCopy => ({
    host: { tensor: host.id, offsetBytes: begin * size, bytes: n * size },
    device: { tensor: device.id, offsetBytes: 0, bytes: n * size },
  });
  const fetched = windows.map((w, i) =>
    hosts.map((host) => draft.tensor(`window ${i} ${host.name}`, w.n * size, host.category)),
  );
  const fetch = (i: number) =>
    listHostCopy(
      draft,
      'fetch',
      group.name,
      'optimizer',
      hosts.map((host, k) => part(host, fetched[i][k], windows[i])),
    );
  const runs = updateRuns(layout, optimizer);
  fetch(0);
  windows.forEach(({ begin, n }, i) => {
    if (i + 1 < windows.length) fetch(i + 1);
    const visit = draft.nextVisit();
    const operands = [...fetched[i], control].map((t) => draft.whole(t));
    for (const run of runs) {
      const from = Math.max(run.offset, begin);
      const to = Math.min(run.offset + run.n, begin + n);
      if (from >= to) continue;
      const { kernel, params } = updateOf(
        optimizer,
        { ...run, offset: from - begin, n: to - from },
        clipping,
        precision,
      );
      listCompute(draft, visit, group.name, kernel, operands, params);
    }
    const stores = kept.map((host, k) => part(host, fetched[i][k], windows[i]));
    listHostCopy(draft, 'store', group.name, 'optimizer', stores);
  });
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

function updateOf(
  optimizer: OptimizerConfig,
  run: UpdateRun,
  clipping: Clipping,
  { kept }: Precision,
): { kernel: Kernel; params: Params } {
  const half = kept === 'f16';
  const common = { ...run, clipValue: clipping.maxValue ?? 0 };
  if (optimizer.kind === 'sgd') {
    const { momentum, nesterov } = optimizer;
    if (momentum === 0) return { kernel: half ? sgdPlainHalf : sgdPlain, params: common };
    return { kernel: half ? sgdHalf : sgd, params: { ...common, momentum, nesterov: nesterov ? 1 : 0 } };
  }
  const [beta1, beta2] = optimizer.betas;
  const decoupled = optimizer.kind === 'adamw' ? 1 : 0;
  const rest = { oneMinusBeta1: 1 - beta1, oneMinusBeta2: 1 - beta2, eps: optimizer.eps };
  return { kernel: half ? adamHalf : adam, params: { ...common, beta1, beta2, ...rest, decoupled } };
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
