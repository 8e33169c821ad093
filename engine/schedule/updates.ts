import type { OptimizerConfig } from '../config.ts';
import { matchesPattern } from '../model/name-pattern.ts';
import type { Kernel, Params } from '../ops/kernel.ts';
import { adam, adamHalf } from '../ops/optimizer/adam.ts';
import { sgd, sgdHalf } from '../ops/optimizer/sgd.ts';
import { sgdPlain, sgdPlainHalf } from '../ops/optimizer/sgd-plain.ts';
import type { ShardLayout } from '../ops/shard/layout.ts';
import type { Draft } from './draft.ts';
import type { Precision } from './precision.ts';
import type { Range, StepPhase } from './schedule.ts';
import type { StoredGroup } from './storage.ts';

/** How gradients are clipped before the update: to a global norm or each element to a value, or not at all. */
export interface Clipping {
  readonly maxNorm: number | null;
  readonly maxValue: number | null;
}

/** What an update is made of, whatever it updates. */
export interface UpdateOptions {
  readonly optimizer: OptimizerConfig;
  readonly clipping: Clipping;
  readonly precision: Precision;
}

/** Neighbouring elements of a rank's part of a group. */
export interface Elements {
  readonly begin: number;
  readonly n: number;
}

/** Where and when a dispatch of the optimizer runs. */
export interface OptimizerVisit {
  readonly visit: number;
  readonly unit: string;
  readonly phase: StepPhase;
}

/**
 * Lists the update of some elements of a group. `operands` begin with these elements, in the order of the optimizer's
 * kernels: parameters, state, gradients, control.
 */
export function listUpdate(
  draft: Draft,
  { optimizer, clipping, precision }: UpdateOptions,
  { layout }: StoredGroup,
  { begin, n }: Elements,
  operands: readonly Range[],
  where: OptimizerVisit,
): void {
  for (const run of updateRuns(layout, optimizer)) {
    const from = Math.max(run.offset, begin);
    const to = Math.min(run.offset + run.n, begin + n);
    if (from >= to) continue;
    const part = { ...run, offset: from - begin, n: to - from };
    const { kernel, params } = updateOf(optimizer, part, clipping, precision);
    listOptimizerKernel(draft, where, kernel, operands, params);
  }
}

/** Lists a kernel of the optimizer. */
export function listOptimizerKernel(
  draft: Draft,
  where: OptimizerVisit,
  kernel: Kernel,
  operands: readonly Range[],
  params: Params,
): void {
  draft.list({
    kind: 'optimizer',
    lane: 'compute',
    label: kernel.name,
    ...where,
    action: { type: 'dispatch', dispatch: draft.dispatch(kernel, operands, params) },
  });
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
function optionsOf(optimizer: OptimizerConfig, name: string): { lr: number; weightDecay: number } {
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
