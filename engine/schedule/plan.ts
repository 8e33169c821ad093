import type { ExperimentConfig } from '../config.ts';
import { StudioError } from '../errors.ts';
import { buildModel } from '../model/build-model.ts';
import { type BatchShape, parameterCount } from '../model/model.ts';
import { type CompiledRun, compileRun } from './compile.ts';
import { boundBy, estimate, RESOURCES, type Resource } from './cost.ts';
import { hostBytesOf } from './host-memory.ts';
import { type BytesByCategory, liveBytes, sumCategories } from './memory.ts';
import { type AdapterProfile, ranksPerAdapter } from './profile.ts';
import { CATEGORIES, type Lane, type StepKind, type StepPhase } from './schedule.ts';

/** The most live bytes of a phase, where, and what they are. */
export interface PhasePeak {
  readonly phase: StepPhase;
  readonly atStep: number;
  readonly liveBytes: number;
  readonly byCategory: BytesByCategory;
}

/** A pass over one batch of held-out data: the most live bytes, what they are, and how long it takes. */
export interface ValidationPass {
  readonly liveBytes: number;
  readonly byCategory: BytesByCategory;
  readonly estimateMs: number;
}

/** What a run will cost, known without running it. Every rank costs the same. */
export interface Prediction {
  readonly params: number;
  readonly world: number;
  /** Reserved: all buffers that a rank holds. */
  readonly peakBytes: number;
  /** Most live at any step, of training or of validation, and its split. */
  readonly liveBytes: number;
  readonly byCategory: BytesByCategory;
  /** Host memory of a rank: its mailbox regions, and what offload keeps on the host. */
  readonly hostBytes: number;
  readonly phases: readonly PhasePeak[];
  /** For each step of the schedule, in listed order; `byCategory` in the order of CATEGORIES. */
  readonly timeline: readonly {
    readonly step: number;
    readonly liveBytes: number;
    readonly byCategory: readonly number[];
  }[];
  readonly steps: readonly {
    readonly id: number;
    readonly label: string;
    readonly kind: StepKind;
    readonly lane: Lane;
    readonly unit: string;
    readonly phase: StepPhase;
  }[];
  readonly estimateMs: number | null;
  /** What that time goes into along the chain of steps that wait for each other, and which of it is most. */
  readonly estimateSplitMs: Readonly<Record<Resource, number>>;
  readonly boundBy: Resource;
  /** Null for a run that does not validate. */
  readonly validation: ValidationPass | null;
}

/** The batch shape of a corpus. Throws StudioError `invalid-config` for a batches file: its shapes are in the file. */
export function shapeOfData(data: ExperimentConfig['data']): BatchShape {
  if (data.kind === 'batches')
    throw new StudioError('invalid-config', 'data.kind: the shapes of a batches file are known when it is read');
  return { batch: data.batchSize, tokens: data.blockSize };
}

/**
 * Plans a config: memory by category and phase, peak and where, time estimate. `vocabSize` is the data's, for a config
 * that leaves it out; `shapes` those of a batches file. Throws StudioError as compileRun does.
 */
export function planExperiment(
  config: ExperimentConfig,
  profile: AdapterProfile,
  vocabSize: number | null = null,
  shapes: readonly BatchShape[] = [shapeOfData(config.data)],
): Prediction {
  const model = buildModel(config.model, vocabSize);
  return predictionOf(compileRun({ config, model, shapes, rank: 0, profile }), profile);
}

/** The prediction for a compiled run; phases, timeline and time are those of a step of training, of the fullest batch shape. */
export function predictionOf(run: CompiledRun, profile: AdapterProfile): Prediction {
  const priced = run.steps.map((step) => {
    const live = liveBytes(step.schedule);
    const totals = live.map(sumCategories);
    const peakAt = totals.indexOf(Math.max(...totals));
    return { step, live, totals, peakAt };
  });
  const fuller = (a: (typeof priced)[number], b: (typeof priced)[number]) =>
    b.totals[b.peakAt] > a.totals[a.peakAt] ? b : a;
  const { step, live, totals } = priced.filter((_, i) => i !== run.evaluation).reduce(fuller);
  const fullest = priced.reduce(fuller);
  const phases = (['forward', 'backward', 'optimizer'] as const).map((phase): PhasePeak => {
    const own = step.schedule.steps.filter((s) => s.phase === phase);
    const atStep = own.reduce((best, s) => (totals[s.id] > totals[best] ? s.id : best), own[0].id);
    return { phase, atStep, liveBytes: totals[atStep], byCategory: live[atStep] };
  });
  const sharing = ranksPerAdapter(profile, run.world);
  const { iterationSeconds, critical } = estimate(step.schedule, profile, sharing);
  const pass = run.evaluation === null ? null : priced[run.evaluation];
  return {
    params: parameterCount(run.model),
    world: run.world,
    peakBytes: run.memory.reservedBytes,
    liveBytes: fullest.totals[fullest.peakAt],
    byCategory: fullest.live[fullest.peakAt],
    hostBytes: hostBytesOf(run),
    phases,
    timeline: live.map((bytes, i) => ({ step: i, liveBytes: totals[i], byCategory: CATEGORIES.map((c) => bytes[c]) })),
    steps: step.schedule.steps.map(({ id, label, kind, lane, unit, phase }) => ({
      id,
      label,
      kind,
      lane,
      unit,
      phase,
    })),
    estimateMs: iterationSeconds * 1000,
    estimateSplitMs: Object.fromEntries(RESOURCES.map((r) => [r, critical[r] * 1000])) as Record<Resource, number>,
    boundBy: boundBy(critical),
    validation: pass && {
      liveBytes: pass.totals[pass.peakAt],
      byCategory: pass.live[pass.peakAt],
      estimateMs: estimate(pass.step.schedule, profile, sharing).totalSeconds * 1000,
    },
  };
}
