import type { FullCheckpoint } from '../checkpoint/full-checkpoint.ts';
import { exchange } from '../comm/exchange.ts';
import type { Mailbox, RegionSpec } from '../comm/mailbox.ts';
import type { ExperimentConfig } from '../config.ts';
import type { BatchStream } from '../data/samples.ts';
import { StudioError } from '../errors.ts';
import { fnv1a } from '../model/fnv1a.ts';
import type { CompiledRun } from '../schedule/compile.ts';
import type { RankEngine, StepFeed, StepOutcome } from '../schedule/rank-engine.ts';
import { collectiveOrder } from '../schedule/verify.ts';
import { type CheckpointRecord, type RunEvent, toWire } from './events.ts';
import {
  drainParts,
  fullCheckpointOf,
  partsInOrder,
  SAVE_PIECE_BYTES,
  type SavedPart,
  type SavingRank,
} from './full-save.ts';
import { lrFactor } from './lr-schedule.ts';

/** Regions that the trainer needs beside those of the schedule, after them in the table. */
export function trainerRegions(run: CompiledRun): RegionSpec[] {
  return [
    ...run.regions,
    { name: 'agreement', bytes: 64, readsPerPublication: 1 },
    { name: 'save', bytes: run.world > 1 ? SAVE_PIECE_BYTES : 4, readsPerPublication: 1 },
  ];
}

/** Writes a checkpoint under its final name, whole or not at all. Rank 0 only. */
export type CheckpointWriter = (checkpoint: FullCheckpoint, step: number) => Promise<CheckpointRecord>;

/** One rank of a run, with all that it needs from outside. */
export interface RankContext {
  readonly config: ExperimentConfig;
  readonly run: CompiledRun;
  readonly engine: RankEngine;
  readonly mailbox: Mailbox;
  readonly batches: BatchStream;
  /** Held-out batches, where the run validates. */
  readonly validation: BatchStream | null;
  readonly writeCheckpoint: CheckpointWriter;
  readonly emit: (event: RunEvent) => void;
  readonly stopRequested: () => boolean;
  /** Says what goes on, for whoever waits. */
  readonly onPhase: (phase: 'training' | 'validating' | 'saving' | 'ending', step: number | null) => void;
}

export interface RankResult {
  readonly status: 'finished' | 'stopped';
  readonly stepsDone: number;
  /** How often each compiled step ran, by its index in `run.steps`: batch shapes, then passes over held-out data. */
  readonly stepsByShape: readonly number[];
  readonly checkpoints: readonly CheckpointRecord[];
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
  private readonly checkpoints: CheckpointRecord[] = [];
  private readonly saving: SavingRank;
  private readonly agreementRegion: number;
  private readonly stepsByShape: number[];
  private lastReportMs = 0;

  constructor(private readonly c: RankContext) {
    this.stepsByShape = c.run.steps.map(() => 0);
    this.agreementRegion = c.run.regions.length;
    const region = this.agreementRegion + 1;
    this.saving = { run: c.run, engine: c.engine, mailbox: c.mailbox, region, optimizer: c.config.optimizer };
  }

  async train(): Promise<RankResult> {
    const { config, mailbox } = this.c;
    await this.agreeOnSchedules();
    const { steps } = config.trainer;
    this.lastReportMs = performance.now();
    let flight: { step: number; outcome: Promise<DatedOutcome> } | null = null;
    let next = 0;
    let stopped = false;
    while (next < steps && !stopped) {
      this.c.onPhase('training', next);
      const { submitted, outcome: bare } = this.start(this.feed(next));
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
        if (this.isValidationDue(next)) await this.validate(next - 1);
        if (this.isSaveDue(next) && next < steps && !stopped) await this.save(next);
      }
    }
    if (config.checkpoint.atEnd) await this.save(next);
    const status = next < steps ? 'stopped' : 'finished';
    // Nobody leaves while a peer still reads from it.
    await exchange(mailbox, this.agreementRegion, [next]);
    this.c.onPhase('ending', next);
    return { status, stepsDone: next, stepsByShape: this.stepsByShape, checkpoints: this.checkpoints };
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
    const { run, batches, config, stopRequested } = this.c;
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
      stopRequested,
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
    const finite = Number.isFinite(outcome.lossMean) && Number.isFinite(outcome.gradNorm);
    if (!finite && config.trainer.onNonFinite === 'skip' && run.rank === 0)
      emit({ event: 'log', rank: null, line: `step ${step} is not finite: it was skipped` });
    if (outcome.halted || (!finite && config.trainer.onNonFinite === 'stop'))
      throw new StudioError(
        'non-finite',
        `step ${step} is not finite (loss ${outcome.lossMean}, gradient norm ${outcome.gradNorm}); the weights are those ` +
          'of the step before. Lower optimizer.lr, or look at the data of this step',
        { rank: run.rank, step },
      );
    return outcome.stopRequested;
  }

  private isValidationDue(stepsDone: number): boolean {
    const { validateEvery } = this.c.config.trainer;
    return validateEvery !== null && stepsDone % validateEvery === 0;
  }

  /** The mean loss of the held-out batches, the same ones each time. Changes nothing that training reads. */
  private async validate(step: number): Promise<void> {
    const { config, run, validation, emit, onPhase, stopRequested } = this.c;
    if (run.evaluation === null || !validation) return;
    onPhase('validating', step);
    const { validateBatches } = config.trainer;
    let sum = 0;
    for (let i = 0; i < validateBatches; i++) {
      const { input, target } = validation.batch(i, 0, run.rank);
      const { outcome } = this.start({
        step,
        shapeIndex: run.evaluation,
        inputs: [Uint32Array.from(input)],
        targets: [Uint32Array.from(target)],
        lrFactor: 0,
        stopRequested,
      });
      sum += (await outcome).lossMean;
    }
    if (run.rank === 0) emit({ event: 'validation', step, loss: toWire(sum / validateBatches) });
    this.lastReportMs = performance.now();
  }

  private isSaveDue(stepsDone: number): boolean {
    const { every } = this.c.config.checkpoint;
    return every !== null && stepsDone % every === 0;
  }

  /** A full checkpoint after `stepsDone` steps: every rank takes part, rank 0 writes. */
  private async save(stepsDone: number): Promise<void> {
    const { config, run, mailbox, onPhase } = this.c;
    if (this.checkpoints.some((c) => c.step === stepsDone)) return;
    onPhase('saving', stepsDone);
    const parts = [...partsInOrder(run, config.optimizer, stepsDone)];
    const failure = mailbox.rank === 0 ? await this.write(parts, stepsDone) : await drainParts(this.saving, parts);
    this.lastReportMs = performance.now();
    const [[failed]] = await exchange(mailbox, this.agreementRegion, [failure instanceof Error ? 1 : 0]);
    if (failed === 0) return;
    const reason = failure instanceof Error ? failure.message : 'rank 0 could not write it';
    const message = `the checkpoint after ${stepsDone} steps was not saved: ${reason}`;
    if (config.checkpoint.onSaveError === 'stop') throw new StudioError('io', message, { rank: 0, step: stepsDone });
    this.c.emit({ event: 'log', rank: run.rank, line: message });
  }

  /** Writes what the parts bring. When that fails, goes on taking them, so that the peers are not left waiting. */
  private async write(parts: readonly SavedPart[], stepsDone: number): Promise<Error | null> {
    const { config, batches } = this.c;
    let taken = 0;
    let open: AsyncGenerator<Uint8Array> | null = null;
    const samples = batches.samplesConsumed(stepsDone);
    const checkpoint = fullCheckpointOf(this.saving, config, stepsDone, samples, (generator) => {
      taken++;
      open = generator;
    });
    try {
      const record = await this.c.writeCheckpoint(checkpoint, stepsDone);
      this.checkpoints.push(record);
      this.c.emit({ event: 'checkpoint', ...record });
      return null;
    } catch (error) {
      if (open) for await (const _ of open as AsyncGenerator<Uint8Array>);
      await drainParts(this.saving, parts.slice(taken));
      return error instanceof Error ? error : new Error(String(error));
    }
  }
}
