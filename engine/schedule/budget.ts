import type { ExperimentConfig } from '../config.ts';
import { StudioError } from '../errors.ts';
import { buildModel } from '../model/build-model.ts';
import type { BatchShape, Model } from '../model/model.ts';
import { type CompiledRun, compileRun } from './compile.ts';
import { shapeOfData } from './plan.ts';
import type { AdapterProfile } from './profile.ts';
import type { Tensor } from './schedule.ts';
import { type FittingSettings, saidSettings, thriftierSettings, withSettings } from './thriftier-settings.ts';

/**
 * memoryBudgetMiB caps what a rank's buffers hold, as a smaller GPU would. The plan is exact, so what does not fit is known
 * before step 0: which tensor has no room, at which step of the schedule, and what would have fitted.
 */

const MiB = 2 ** 20;

/** The first tensor that a budget has no room for. */
export interface Overflow {
  readonly rank: number;
  /** Step of the schedule that makes it; null for what is held before step 0. */
  readonly scheduleStep: number | null;
  readonly label: string;
  readonly tensor: string;
  readonly bytes: number;
  /** What the rank's buffers hold with everything in its place. */
  readonly neededBytes: number;
  readonly budgetBytes: number;
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
    stagingOver(fixed, budgetBytes) ??
    firstOver(run, budgetBytes - fixed, liveSum) ??
    firstOver(run, budgetBytes - fixed, reachOf(run)) ??
    ({ scheduleStep: null, label: 'set-up', tensor: 'all slabs', bytes: neededBytes } as const);
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

type First = Pick<Overflow, 'scheduleStep' | 'label' | 'tensor' | 'bytes'>;

/** What is held beside the device's slabs is there first. */
function stagingOver(bytes: number, budgetBytes: number): First | null {
  if (bytes <= budgetBytes) return null;
  return { scheduleStep: null, label: 'set-up', tensor: 'staging', bytes };
}

/** The first tensor with which the count passes so many bytes, state before step 0 first. */
function firstOver(run: CompiledRun, bytes: number, count: Count): First | null {
  for (const [shape, { schedule }] of run.steps.entries()) {
    const counted = count(shape);
    const isOver = (t: Tensor) => t.space === 'device' && counted.add(t) > bytes;
    // What a person knows of first; tables of constants are small, and nobody's setting.
    const states = schedule.tensors.filter(({ state }) => state);
    const known = states.filter(({ category }) => category !== 'workspace');
    const state = [...known, ...states.filter((t) => !known.includes(t))].find(isOver);
    if (state) return { scheduleStep: null, label: 'set-up', tensor: state.name, bytes: state.bytes };
    for (const { id, label, creates, frees } of schedule.steps) {
      const made = creates.map((t) => schedule.tensors[t]).find(isOver);
      if (made) return { scheduleStep: id, label, tensor: made.name, bytes: made.bytes };
      for (const t of frees) if (schedule.tensors[t].space === 'device') counted.remove(schedule.tensors[t]);
    }
  }
  return null;
}

/** Parts of schedules that are planned in search of settings that fit, all together: a minute of one core. */
const MAX_TRIED_PARTS = 200_000;

/**
 * The first `most` of the thriftier settings that fit a budget, by the planner, or fewer where a model is so large that not
 * all of them can be tried. `shapes` are the run's batch shapes; a changed batch size has its own.
 */
export function fittingSettings(
  config: ExperimentConfig,
  memoryBudgetMiB: number,
  input: { readonly model: Model; readonly shapes: readonly BatchShape[]; readonly profile: AdapterProfile },
  most = 3,
  mostParts = MAX_TRIED_PARTS,
): FittingSettings[] {
  const found: FittingSettings[] = [];
  let parts = 0;
  for (const settings of thriftierSettings(config, input.model.blockClasses)) {
    if (found.length === most || parts > mostParts) break;
    // What fits with less changed is said already.
    if (found.some((fit) => Object.entries(fit.settings).every(([path, value]) => settings[path] === value))) continue;
    const changed = withSettings(config, settings);
    const run = changed && compiledOf(changed, input, 'data.batchSize' in settings);
    if (!run) continue;
    parts += run.steps.reduce((sum, { schedule }) => sum + schedule.steps.length, 0);
    const peakBytes = run.memory.reservedBytes;
    if (peakBytes <= memoryBudgetMiB * MiB) found.push({ settings, peakBytes });
  }
  return found;
}

function compiledOf(
  config: ExperimentConfig,
  { model, shapes, profile }: { model: Model; shapes: readonly BatchShape[]; profile: AdapterProfile },
  ownShape: boolean,
): CompiledRun | null {
  try {
    const of = ownShape ? [shapeOfData(config.data)] : shapes;
    return compileRun({ config, model, shapes: of, rank: 0, profile });
  } catch (error) {
    // What the planner refuses does not fit either.
    if (error instanceof StudioError) return null;
    throw error;
  }
}

/** What does not fit, where, and what would have: the message of the refusal. */
export function overflowMessage(overflow: Overflow, fitting: readonly FittingSettings[]): string {
  const { rank, scheduleStep, label, tensor, bytes, neededBytes, budgetBytes } = overflow;
  const where = scheduleStep === null ? 'before step 0' : `at schedule step ${scheduleStep} (${label})`;
  const ways = fitting.map((way) => `${saidSettings(way.settings)} (${mib(way.peakBytes)} MiB)`);
  const out = ways.length
    ? `It would fit with ${ways.join('; or ')}`
    : 'No strategy and no batch size that the planner tried would fit: use more devices or a smaller model, or raise memoryBudgetMiB';
  return (
    `memoryBudgetMiB ${mib(budgetBytes)}: rank ${rank} has no room for ${tensorWords(tensor)} (${mib(bytes)} MiB, ${bytes} bytes) ${where}; the run needs ` +
    `${mib(neededBytes)} MiB a rank. ${out}`
  );
}

/** A tensor of the schedule as a person knows it: by what it is and the unit that the wrap policy made. */
function tensorWords(tensor: string): string {
  if (tensor === 'staging') return 'the buffers through which ranks, host and device exchange';
  if (tensor === 'control' || tensor === 'bias corrections') return 'the scalars of the step';
  const gathered = /^gathered (.+?)( (?:forward|backward|step))?$/.exec(tensor);
  if (gathered) return `the gathered unit ${gathered[1]}`;
  const stored = /^(parameters|gradients|exp_avg|exp_avg_sq|momentum_buffer|wire table|table) (.+)$/.exec(tensor);
  if (!stored) return tensor;
  const of = stored[2].startsWith('bucket ') ? stored[2] : `unit ${stored[2]}`;
  return stored[1].endsWith('table') ? `the constants of ${of}` : `${stored[1]} of ${of}`;
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
