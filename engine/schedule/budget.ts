import { checkConfig, type ExperimentConfig } from '../config.ts';
import { StudioError } from '../errors.ts';
import { buildModel } from '../model/build-model.ts';
import type { BatchShape, Model } from '../model/model.ts';
import { type CompiledRun, compileRun } from './compile.ts';
import { shapeOfData } from './plan.ts';
import type { AdapterProfile } from './profile.ts';
import type { Tensor } from './schedule.ts';

/**
 * memoryBudgetMiB caps what a rank's buffers hold, as a smaller GPU would. The plan is exact, so what does not fit is known
 * before step 0: which tensor has no room, at which step of the schedule, and what would have fitted.
 */

const MiB = 2 ** 20;

/** The first tensor that a budget has no room for. */
export interface Overflow {
  readonly rank: number;
  /** Step of the schedule that makes it; null for what is held before step 0. */
  readonly step: number | null;
  readonly label: string;
  readonly tensor: string;
  readonly bytes: number;
  /** What the rank's buffers hold with everything in its place. */
  readonly neededBytes: number;
  readonly budgetBytes: number;
}

/** Settings by dotted path that would fit, and what they reserve. */
export interface FittingSettings {
  readonly settings: Readonly<Record<string, unknown>>;
  readonly peakBytes: number;
}

/**
 * What of a config's memoryBudgetMiB a run overflows, or null: the tensor with which what is alive first passes it, or,
 * where only the gaps between tensors do, the first whose place is past it.
 */
export function overflowOf(run: CompiledRun, memoryBudgetMiB: number | null): Overflow | null {
  const neededBytes = run.memory.reservedBytes;
  const budgetBytes = (memoryBudgetMiB ?? Number.POSITIVE_INFINITY) * MiB;
  if (neededBytes <= budgetBytes) return null;
  const fixed = run.memory.slabs.reduce((sum, { space, bytes }) => sum + (space === 'device' ? 0 : bytes), 0);
  const first =
    firstOver(run, budgetBytes - fixed, liveSum) ??
    firstOver(run, budgetBytes - fixed, reachOf(run)) ??
    ({ step: null, label: 'set-up', tensor: 'all slabs', bytes: neededBytes } as const);
  return { rank: run.rank, ...first, neededBytes, budgetBytes };
}

/** Counts device bytes as tensors come and go; made anew for each walk of a schedule. */
type Count = (shape: number) => { add(tensor: Tensor): number; remove(tensor: Tensor): void };

/** What is alive. */
const liveSum: Count = () => {
  let bytes = 0;
  return {
    add(tensor) {
      bytes += tensor.bytes;
      return bytes;
    },
    remove(tensor) {
      bytes -= tensor.bytes;
    },
  };
};

/** How far the places reach that have been taken. */
const reachOf =
  (run: CompiledRun): Count =>
  (shape) => {
    const ends = run.memory.slabs.map(() => 0);
    return {
      add({ id, bytes }) {
        const { slab, offsetBytes } = run.steps[shape].placements[id];
        if (slab >= 0) ends[slab] = Math.max(ends[slab], offsetBytes + bytes);
        return ends.reduce((sum, end) => sum + end, 0);
      },
      remove() {},
    };
  };

type First = Pick<Overflow, 'step' | 'label' | 'tensor' | 'bytes'>;

/** The first tensor with which the count passes so many bytes, state before step 0 first. */
function firstOver(run: CompiledRun, bytes: number, count: Count): First | null {
  for (const [shape, { schedule }] of run.steps.entries()) {
    const counted = count(shape);
    const isOver = (t: Tensor) => t.space === 'device' && counted.add(t) > bytes;
    const state = schedule.tensors.find((t) => t.state && isOver(t));
    if (state) return { step: null, label: 'set-up', tensor: state.name, bytes: state.bytes };
    for (const { id, label, creates, frees } of schedule.steps) {
      const made = creates.map((t) => schedule.tensors[t]).find(isOver);
      if (made) return { step: id, label, tensor: made.name, bytes: made.bytes };
      for (const t of frees) if (schedule.tensors[t].space === 'device') counted.remove(schedule.tensors[t]);
    }
  }
  return null;
}

/**
 * What is tried, in this order, to make a config fit: recomputed blocks, then sharding by and by, then offload, each with
 * and without recomputed blocks; then smaller batches as the config is, then with everything.
 */
export function* thriftierSettings(
  config: ExperimentConfig,
  blockClasses: readonly string[],
): Generator<Readonly<Record<string, unknown>>> {
  const recompute = { 'strategy.activationCheckpointingPolicy': blockClasses };
  const recomputes = config.strategy.activationCheckpointingPolicy.length > 0;
  const shard = (shardingStrategy: string) => ({
    'strategy.kind': 'fsdp',
    'strategy.shardingStrategy': shardingStrategy,
  });
  const offload = { ...shard('FULL_SHARD'), 'strategy.cpuOffload': true };
  const strategies = config.devices > 1 ? [shard('SHARD_GRAD_OP'), shard('FULL_SHARD'), offload] : [offload];
  if (!recomputes) yield recompute;
  for (const strategy of strategies) {
    yield strategy;
    if (!recomputes) yield { ...strategy, ...recompute };
  }
  if (config.data.kind === 'batches') return;
  for (const rest of [{}, { ...offload, ...recompute }])
    for (let size = Math.floor(config.data.batchSize / 2); size >= 1; size = Math.floor(size / 2))
      yield { ...rest, 'data.batchSize': size };
}

/**
 * The first `most` of the thriftier settings that fit a budget, by the planner. `shapes` are the run's batch shapes; a
 * changed batch size has its own.
 */
export function fittingSettings(
  config: ExperimentConfig,
  memoryBudgetMiB: number,
  input: { readonly model: Model; readonly shapes: readonly BatchShape[]; readonly profile: AdapterProfile },
  most = 3,
): FittingSettings[] {
  const found: FittingSettings[] = [];
  for (const settings of thriftierSettings(config, input.model.blockClasses)) {
    if (found.length === most) break;
    // What fits with less changed is said already.
    if (found.some((fit) => Object.entries(fit.settings).every(([path, value]) => settings[path] === value))) continue;
    const changed = withSettings(config, settings);
    const peakBytes = changed && reservedBytesOf(changed, input, 'data.batchSize' in settings);
    if (peakBytes !== null && peakBytes <= memoryBudgetMiB * MiB) found.push({ settings, peakBytes });
  }
  return found;
}

function reservedBytesOf(
  config: ExperimentConfig,
  { model, shapes, profile }: { model: Model; shapes: readonly BatchShape[]; profile: AdapterProfile },
  ownShape: boolean,
): number | null {
  try {
    const of = ownShape ? [shapeOfData(config.data)] : shapes;
    return compileRun({ config, model, shapes: of, rank: 0, profile }).memory.reservedBytes;
  } catch (error) {
    // What the planner refuses does not fit either.
    if (error instanceof StudioError) return null;
    throw error;
  }
}

/** The config with other settings, or null where that is no legal config. What only another strategy has is left out. */
export function withSettings(
  config: ExperimentConfig,
  settings: Readonly<Record<string, unknown>>,
): ExperimentConfig | null {
  const changed: Record<string, unknown> = { ...config };
  const { strategy } = config;
  if ('strategy.shardingStrategy' in settings) {
    const { activationCheckpointingPolicy } = strategy;
    changed.strategy =
      strategy.kind === 'fsdp' ? { ...strategy, deviceMesh: null, linkGBps: null } : { activationCheckpointingPolicy };
  }
  for (const [path, value] of Object.entries(settings)) {
    const [section, key] = path.split('.');
    changed[section] = { ...(changed[section] as object), [key]: value };
  }
  return checkConfig(changed).config;
}

/** The settings as a person reads them. */
export function saidSettings(settings: Readonly<Record<string, unknown>>): string {
  return Object.entries(settings)
    .filter(([path]) => path !== 'strategy.kind' || settings['strategy.shardingStrategy'] === undefined)
    .map(([path, value]) => `${path} ${Array.isArray(value) ? `[${value.join(', ')}]` : value}`)
    .join(' with ');
}

/** What does not fit, where, and what would have: the message of the refusal. */
export function overflowMessage(overflow: Overflow, fitting: readonly FittingSettings[]): string {
  const { rank, step, label, tensor, bytes, neededBytes, budgetBytes } = overflow;
  const where = step === null ? 'before step 0' : `at schedule step ${step} (${label})`;
  const ways = fitting.map((way) => `${saidSettings(way.settings)} (${mib(way.peakBytes)} MiB)`);
  const out = ways.length
    ? `It would fit with ${ways.join('; or ')}`
    : 'No strategy and no batch size that the planner tried would fit: use more devices or a smaller model, or raise it';
  return (
    `memoryBudgetMiB ${mib(budgetBytes)}: rank ${rank} has no room for ${tensor} (${bytes} bytes) ${where}; the run needs ` +
    `${mib(neededBytes)} MiB a rank. ${out}`
  );
}

function mib(bytes: number): string {
  const value = bytes / MiB;
  return Number.isInteger(value) ? String(value) : value.toFixed(value < 100 ? 2 : 0);
}

/** Throws StudioError `out-of-memory` when a run does not fit its config's budget, with what would have fitted. */
export function refuseOverBudget(config: ExperimentConfig, run: CompiledRun, profile: AdapterProfile): void {
  const overflow = overflowOf(run, config.memoryBudgetMiB);
  if (!overflow || config.memoryBudgetMiB === null) return;
  const shapes = run.steps.map(({ shape }) => shape);
  const fitting = fittingSettings(config, config.memoryBudgetMiB, { model: run.model, shapes, profile });
  throw new StudioError('out-of-memory', overflowMessage(overflow, fitting), { ...overflow, fitting, ooms: 1 });
}

/** The same of a config that is not compiled yet; null where it fits or has no budget. */
export function budgetVerdict(
  config: ExperimentConfig,
  profile: AdapterProfile,
  vocabSize: number | null = null,
  shapes: readonly BatchShape[] = [shapeOfData(config.data)],
): { readonly overflow: Overflow; readonly fitting: readonly FittingSettings[] } | null {
  if (config.memoryBudgetMiB === null) return null;
  const model = buildModel(config.model, vocabSize);
  const overflow = overflowOf(compileRun({ config, model, shapes, rank: 0, profile }), config.memoryBudgetMiB);
  if (!overflow) return null;
  return { overflow, fitting: fittingSettings(config, config.memoryBudgetMiB, { model, shapes, profile }) };
}
