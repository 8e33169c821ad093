import type { RunKernels } from '../checkpoint/stored-checkpoint.ts';
import { exchange } from '../comm/exchange.ts';
import type { Mailbox, RegionSpec } from '../comm/mailbox.ts';
import { checkpointFormat, type ExperimentConfig } from '../config.ts';
import { counted } from '../counted.ts';
import type { BatchStream } from '../data/samples.ts';
import { StudioError } from '../errors.ts';
import { fnv1a } from '../model/fnv1a.ts';
import { CONTROL } from '../ops/control.ts';
import type { CompiledRun } from '../schedule/compile.ts';
import type { RankEngine, StepFeed, StepOutcome } from '../schedule/rank-engine.ts';
import type { Tensor } from '../schedule/schedule.ts';
import type { StepTrace } from '../schedule/step-trace.ts';
import { collectiveOrder } from '../schedule/verify.ts';
import { describeCheckpoint } from './describe-checkpoint.ts';
import { type CheckpointRecord, type RunEvent, toWire } from './events.ts';
import { isWriter, SAVE_PIECE_BYTES } from './full-save.ts';
import { lrFactor } from './lr-schedule.ts';
import { type RankTrace, rankTraceOf } from './rank-trace.ts';
import { type CheckpointStore, type SaveResult, saveCheckpoint } from './save-checkpoint.ts';
import { copiedReader, copyBytes, engineReader } from './state-reader.ts';

/** Regions that the trainer needs beside those of the schedule, after them in the table. */
export function trainerRegions(run: CompiledRun): RegionSpec[] {
  return [
    ...run.regions,
    { name: 'agreement', bytes: 64, readsPerPublication: 1 },
    { name: 'save', bytes: run.world > 1 ? SAVE_PIECE_BYTES : 4, readsPerPublication: 1 },
    { name: 'save agreement', bytes: 64, readsPerPublication: 1 },
  ];
}

/** One rank of a run, with all that it needs from outside. */
export interface RankContext {
  readonly config: ExperimentConfig;
  readonly run: CompiledRun;
  readonly engine: RankEngine;
  readonly mailbox: Mailbox;
  readonly batches: BatchStream;
  /** Held-out batches, where the run validates. */
  readonly validation: BatchStream | null;
  /** Optimizer steps that lie behind the run's start; 0 if left out. */
  readonly startStep?: number;
  readonly checkpoints: CheckpointStore;
  /** What the steps are computed with, for the checkpoints to say; left out by the interpreter. */
  readonly kernels?: RunKernels;
  readonly emit: (event: RunEvent) => void;
  readonly stopRequested: () => boolean;
  /** How often this rank was asked to save. Asking one rank is enough. */
  readonly savesRequested?: () => number;
  /** Traces of steps: where they are kept, and the step to trace from the start, if any. */
  readonly traces?: {
    readonly step: number | null;
    /** How often this rank was asked for one of the next step. Asking one rank is enough. */
    readonly requested?: () => number;
    readonly clockOffsetMs: number;
    readonly save: (trace: RankTrace) => Promise<void>;
  };
  /** Says what goes on, for whoever waits. */
  readonly onPhase: (phase: 'training' | 'validating' | 'saving' | 'ending', step: number | null) => void;
}

export interface RankResult {
  readonly status: 'finished' | 'stopped';
  readonly stepsDone: number;
  /** How often each compiled step ran, by its index in `run.steps`: batch shapes, then passes over held-out data. */
  readonly stepsByShape: readonly number[];
  readonly checkpoints: readonly CheckpointRecord[];
  /** Why the checkpoint at the end could not be saved, on all ranks alike; null where it was, or none was due. */
  readonly unsaved: StudioError | null;
}

/**
 * Trains one rank: step after step, one step ahead of its report, saving and stopping where every rank does. All that
 * decides the course (a stop, a step that was not finite) comes from the report, which is the same on every rank. Throws
 * StudioError `non-finite`, or what the engine and the peers throw.
 */
export async function trainRank(context: RankContext): Promise<RankResult> {
  return new RankTraining(context).train();
}

/** An outcome with the moment at which it was there, which is not when it is looked at. */
interface DatedOutcome extends StepOutcome {
  readonly atMs: number;
}

class RankTraining {
  private checkpoints: CheckpointRecord[] = [];
  private readonly agreementRegion: number;
  private readonly stepsByShape: number[];
  private lastReportMs = 0;
  /** The save that goes on beside training, and after how many steps the last was begun. */
  private saving: Promise<void> = Promise.resolve();
  private savedStep: number | null = null;
  /** Requests of this rank that a save has answered, and whether some rank's report asked for one. */
  private savesAnswered = 0;
  private saveHeard = false;
  private saveError: StudioError | null = null;
  private lastFailure: StudioError | null = null;
  /** The traces that are being written, beside training; requests as of saves. */
  private tracing: Promise<void> = Promise.resolve();
  private tracesAnswered = 0;
  private traceHeard = false;

  constructor(private readonly c: RankContext) {
    this.stepsByShape = c.run.steps.map(() => 0);
    this.agreementRegion = c.run.regions.length;
  }

  async train(): Promise<RankResult> {
    const { mailbox } = this.c;
    await this.agreeOnSchedules();
    try {
      return await this.trainAndSave();
    } catch (error) {
      // All ranks throw this at the same step: what is being written is still good, and is finished.
      if (error instanceof StudioError && error.code === 'non-finite') {
        await this.saving.then(() => exchange(mailbox, this.agreementRegion, [0])).catch(() => undefined);
      }
      throw error;
    }
  }

  private async trainAndSave(): Promise<RankResult> {
    const { config, mailbox, startStep = 0 } = this.c;
    const { steps } = config.trainer;
    this.lastReportMs = performance.now();
    let flight: { step: number; outcome: Promise<DatedOutcome> } | null = null;
    let next = startStep;
    let stopped = false;
    while (next < steps && !stopped) {
      this.c.onPhase('training', next);
      const isTraced = this.traceHeard || next === this.c.traces?.step;
      // A step that is traced begins on a device with nothing else to do.
      if (isTraced && flight) {
        stopped = this.report(flight.step, await flight.outcome);
        flight = null;
        if (stopped) break;
      }
      const trace = isTraced ? await this.beginTrace() : undefined;
      const feed = this.feed(next);
      const { submitted, outcome: bare } = this.start({ ...feed, trace });
      if (trace) this.keep(trace, feed, bare);
      const outcome = bare.then((o) => ({ ...o, atMs: performance.now() }));
      // A report that fails while the step after it starts is looked at below.
      outcome.catch(() => undefined);
      await submitted;
      if (flight) stopped = this.report(flight.step, await flight.outcome);
      flight = { step: next, outcome };
      next++;
      if (stopped || next === steps || this.isSaveDue(next) || this.isValidationDue(next)) {
        stopped = this.report(flight.step, await flight.outcome) || stopped;
        flight = null;
        if (this.isValidationDue(next) && !stopped) stopped = await this.validate(next - 1);
        if (this.isSaveDue(next) && next < steps && !stopped) await this.save(next, true);
      }
    }
    if (this.savedStep !== null) this.c.onPhase('saving', next);
    await this.saving;
    const savesAtEnd = (config.checkpoint.atEnd || this.isSaveDue(next)) && next > startStep;
    if (savesAtEnd && !this.saveError) await this.save(next, false);
    await this.saving;
    await this.tracing;
    const status = next < steps ? 'stopped' : 'finished';
    // Nobody leaves while a peer still reads from it.
    await exchange(mailbox, this.agreementRegion, [next]);
    if (this.saveError) throw this.saveError;
    this.c.onPhase('ending', next);
    const unsaved = savesAtEnd ? this.lastFailure : null;
    return { status, stepsDone: next, stepsByShape: this.stepsByShape, checkpoints: this.checkpoints, unsaved };
  }

  /** Step 0 starts only if all ranks' collectives meet. */
  private async agreeOnSchedules(): Promise<void> {
    const { run, mailbox } = this.c;
    const hash = fnv1a(run.steps.map((step) => collectiveOrder(step.schedule)).join('\n'));
    const all = await exchange(mailbox, this.agreementRegion, [hash & 0xffff, hash >>> 16]);
    const other = all.findIndex(([low, high]) => low !== all[0][0] || high !== all[0][1]);
    if (other < 0) return;
    throw new StudioError(
      'invalid-schedule',
      `rank ${other} has another order of collectives than rank 0: they would wait for each other for ever. ` +
        'Ranks of one run must have the same config, batch shapes and version',
      { rank: other },
    );
  }

  private start(feed: StepFeed): ReturnType<RankEngine['start']> {
    this.stepsByShape[feed.shapeIndex]++;
    return this.c.engine.start(feed);
  }

  private feed(step: number): StepFeed {
    const { run, batches, config } = this.c;
    const { rows, columns } = batches.shape(step);
    const microBatches = Array.from({ length: config.trainer.accumulateGradBatches }, (_, micro) =>
      batches.batch(step, micro, run.rank),
    );
    return {
      step,
      shapeIndex: run.steps.findIndex(({ shape }) => shape.batch === rows && shape.tokens === columns),
      inputs: microBatches.map(({ input }) => Uint32Array.from(input)),
      targets: microBatches.map(({ target }) => Uint32Array.from(target)),
      lrFactor: lrFactor(config, step),
      ...this.requests(),
    };
  }

  /** What this rank has been asked for, told to all at the step's report. A save that failed may end the run. */
  private requests(): Pick<StepFeed, 'stopRequested' | 'saveRequested' | 'traceRequested'> {
    const { stopRequested, savesRequested, traces } = this.c;
    return {
      stopRequested: () => stopRequested() || this.saveError !== null,
      saveRequested: () => (savesRequested?.() ?? 0) > this.savesAnswered,
      traceRequested: () => (traces?.requested?.() ?? 0) > this.tracesAnswered,
    };
  }

  /** Emits the step; says whether training ends after the steps that are under way. */
  private report(step: number, outcome: DatedOutcome): boolean {
    const { config, run, engine, batches, emit } = this.c;
    const iterationMs = outcome.atMs - this.lastReportMs;
    this.lastReportMs = outcome.atMs;
    const { rows, columns } = batches.shape(step);
    const { currentBytes, peakBytes, liveBytes, byCategory, hostBytes, allocRetries, ooms } = engine.memory();
    emit({
      event: 'step',
      rank: run.rank,
      step,
      loss: toWire(outcome.loss),
      lossMean: toWire(outcome.lossMean),
      gradNorm: toWire(outcome.gradNorm),
      iterationMs,
      tokens: rows * columns * config.trainer.accumulateGradBatches,
      memory: { currentBytes, peakBytes, liveBytes, byCategory, hostBytes, allocRetries, ooms },
    });
    this.judge(step, outcome);
    this.saveHeard ||= outcome.saveRequested;
    this.traceHeard ||= outcome.traceRequested;
    return outcome.stopRequested;
  }

  /** What a step that is not finite comes to. Throws StudioError `non-finite` where it ends the run. */
  private judge(step: number, outcome: StepOutcome): void {
    const { config, run, emit } = this.c;
    const finite = Number.isFinite(outcome.lossMean) && Number.isFinite(outcome.gradNorm);
    const say = (line: string) => run.rank === 0 && emit({ event: 'log', rank: null, line });
    // With a scaled loss gradients overflow in the ordinary course of things: that is how the scale is found.
    if (run.precision.scalesLoss && Number.isFinite(outcome.lossMean)) {
      if (!finite) say(`step ${step}: its gradients overflow float16; it was skipped and the loss scale halved`);
      return;
    }
    if (!finite && config.trainer.onNonFinite === 'skip') say(`step ${step} is not finite: it was skipped`);
    const left = run.updatesInBackward
      ? 'with strategy.cpuOffload its updates had begun, so go on from a checkpoint, or set trainer.onNonFinite to skip'
      : 'the weights are those of the step before';
    // What is beyond float16 while the loss is not may have been so on its way between the ranks alone.
    const travels = run.precision.reduced === 'f16' && config.devices > 1 && Number.isFinite(outcome.lossMean);
    const way = travels
      ? 'Gradients travel as float16, which ends at 65,504: lower optimizer.lr, or let them travel as float32 (strategy.mixedPrecision.reduceDtype)'
      : 'Lower optimizer.lr, or look at the data of this step';
    if (outcome.halted || (!finite && config.trainer.onNonFinite === 'stop'))
      throw new StudioError(
        'non-finite',
        `step ${step} is not finite (loss ${outcome.lossMean}, gradient norm ${outcome.gradNorm}); ${left}. ${way}`,
        { rank: run.rank, step },
      );
  }

  private beginTrace(): Promise<StepTrace> {
    this.traceHeard = false;
    this.tracesAnswered = this.c.traces?.requested?.() ?? 0;
    return this.c.engine.trace();
  }

  /** Keeps a step's trace once its outcome is there. What goes wrong with it is told, and training goes on. */
  private keep(trace: StepTrace, { step, shapeIndex }: StepFeed, outcome: Promise<StepOutcome>): void {
    const { run, emit, traces } = this.c;
    const { schedule } = run.steps[shapeIndex];
    const say = (line: string) => emit({ event: 'log', rank: run.rank, line });
    const keep = async () => {
      if ((await outcome.catch(() => null)) === null) return;
      const times = await trace.finish(schedule);
      await traces?.save(rankTraceOf(schedule, times, step, traces.clockOffsetMs));
      say(`step ${step} was traced`);
    };
    const kept = keep().catch((error: Error) => say(`the trace of step ${step} was not written: ${error.message}`));
    this.tracing = this.tracing.then(() => kept);
  }

  private isValidationDue(stepsDone: number): boolean {
    const { validateEvery } = this.c.config.trainer;
    return validateEvery !== null && stepsDone % validateEvery === 0;
  }

  /**
   * The mean loss of the held-out batches, the same ones each time. Changes nothing that training reads. What is asked for
   * meanwhile is heard with each batch's report, on all ranks alike: a save is made, and a stop leaves the rest out. Says
   * whether training ends.
   */
  private async validate(step: number): Promise<boolean> {
    const { config, run, validation, emit, onPhase } = this.c;
    if (run.evaluation === null || !validation) return false;
    onPhase('validating', step);
    const { validateBatches } = config.trainer;
    let sum = 0;
    let stopped = false;
    for (let i = 0; i < validateBatches; i++) {
      const { input, target } = validation.batch(i, 0, run.rank);
      const { outcome } = this.start({
        step,
        shapeIndex: run.evaluation,
        inputs: [Uint32Array.from(input)],
        targets: [Uint32Array.from(target)],
        lrFactor: 0,
        ...this.requests(),
      });
      const { lossMean, stopRequested, saveRequested, traceRequested } = await outcome;
      sum += lossMean;
      this.saveHeard ||= saveRequested;
      this.traceHeard ||= traceRequested;
      stopped = stopRequested;
      if (stopped && i + 1 < validateBatches) {
        const line = `the validation after step ${step} ends with the run, after ${i + 1} of ${validateBatches} batches`;
        if (run.rank === 0) emit({ event: 'log', rank: null, line });
        return true;
      }
      if (this.saveHeard && !stopped && step + 1 < config.trainer.steps) {
        await this.save(step + 1, true);
        onPhase('validating', step);
      }
    }
    if (run.rank === 0) emit({ event: 'validation', step, loss: toWire(sum / validateBatches) });
    this.lastReportMs = performance.now();
    return stopped;
  }

  private isSaveDue(stepsDone: number): boolean {
    const { every } = this.c.config.checkpoint;
    return this.saveHeard || (every !== null && stepsDone % every === 0);
  }

  /**
   * Saves after `stepsDone` steps: every rank takes part. Training waits for an earlier save and for the copy to the host;
   * the rest goes on beside it if `beside` and if there is room for a copy, else this waits for it and nothing is copied.
   */
  private async save(stepsDone: number, beside: boolean): Promise<void> {
    const {
      config,
      run,
      engine,
      mailbox,
      batches,
      checkpoints: store,
      emit,
      onPhase,
      savesRequested,
      kernels,
    } = this.c;
    this.saveHeard = false;
    this.savesAnswered = savesRequested?.() ?? 0;
    if (this.savedStep === stepsDone) return;
    onPhase('saving', stepsDone);
    await this.saving;
    if (this.saveError) return;
    this.savedStep = stepsDone;
    const { groups, control } = run.steps[0];
    const [updates] = await engine.read(control.name, CONTROL.t * 4, 4);
    const [scale, goodSteps] = await engine.read(control.name, CONTROL.lossScale * 4, 8);
    const scaler = run.precision.scalesLoss ? { scale, goodSteps } : null;
    const samples = batches.samplesConsumed(stepsDone);
    const position = { iter: stepsDone, updates, samples, scaler, kernels };
    const description = describeCheckpoint({ run, config }, position);
    const format = checkpointFormat(config);
    const kept = groups.flatMap((g) => [g.parameters, ...(format === 'safetensors' ? [] : Object.values(g.state))]);
    const copied = isWriter(run) ? kept : [];
    const goesOn = beside && this.hasRoomFor(copied);
    const read = goesOn ? await copiedReader(engine, copied) : engineReader(engine);
    const region = this.agreementRegion + 1;
    const texts = { sizes: region + 1, pieces: region };
    const rank = { run, mailbox, region, read };
    const onLate = (late: readonly number[]) => {
      if (run.rank === 0)
        emit({
          event: 'log',
          rank: null,
          line: `the checkpoint after ${stepsDone} steps takes long: rank ${late.join(', ')} is still writing, the others wait`,
        });
    };
    const saving = saveCheckpoint({ rank, texts, store, config, format, description, onLate });
    this.saving = saving.then((result) => this.saved(result, stepsDone));
    // A peer that is lost is heard of by the step under way; this is waited for before the next save and at the end.
    this.saving.catch(() => undefined);
    if (!goesOn) await this.saving;
    this.lastReportMs = performance.now();
  }

  /** Whether all ranks may copy as much as this one. What one of them decides here binds no other. */
  private hasRoomFor(copied: readonly Tensor[]): boolean {
    const { run, checkpoints, emit } = this.c;
    const bytes = copied.reduce((sum, tensor) => sum + copyBytes(tensor), 0) * run.shards.count;
    const freeBytes = bytes === 0 ? Number.POSITIVE_INFINITY : checkpoints.freeMemoryBytes();
    const fits = bytes <= freeBytes / 2;
    const miB = (value: number) => `${Math.ceil(value / 2 ** 20)} MiB`;
    if (!fits)
      emit({
        event: 'log',
        rank: run.rank,
        line: `training waits while it is saved: a copy takes ${miB(bytes)} and ${miB(freeBytes)} are free on the host`,
      });
    return fits;
  }

  private saved(result: SaveResult, stepsDone: number): void {
    const { config, run, emit } = this.c;
    if ('failed' in result) {
      const message = `the checkpoint after ${counted(stepsDone, 'step')} was not saved: ${result.failed}`;
      this.lastFailure = new StudioError('io', message, { rank: 0, step: stepsDone });
      if (config.checkpoint.onSaveError === 'stop') this.saveError = this.lastFailure;
      else if (run.rank === 0) emit({ event: 'log', rank: null, line: message });
      return;
    }
    this.lastFailure = null;
    if (run.rank !== 0) return;
    const { saved, removed, notRemoved } = result;
    this.checkpoints = [...this.checkpoints.filter(({ path }) => !removed.includes(path)), saved];
    emit({ event: 'checkpoint', ...saved, ...(removed.length ? { removed: [...removed] } : {}) });
    if (notRemoved !== null)
      emit({ event: 'log', rank: null, line: `an older checkpoint could not be deleted: ${notRemoved}` });
  }
}
