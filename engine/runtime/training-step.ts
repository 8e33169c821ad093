import { StudioError } from '../errors.ts';
import type { ExecutableStep } from '../schedule/compile.ts';
import type { StepFeed, StepOutcome } from '../schedule/rank-engine.ts';
import { computeVisits, type Lane, type Range, type Step } from '../schedule/schedule.ts';
import type { StepTrace } from '../schedule/step-trace.ts';
import { Completions } from './completions.ts';
import type { ActionOf, Copies, CopyEngine, UnderWay } from './copies.ts';

/** What the lanes ask of the engine. */
export interface LaneEngine extends CopyEngine {
  readonly copies: Copies;
  compiled(feed: StepFeed): ExecutableStep;
  submitTraced(feed: StepFeed, steps: readonly Step[], trace: StepTrace): Promise<void>;
  feed(compiled: ExecutableStep, action: ActionOf<'feed'>, feed: StepFeed): void;
  report(compiled: ExecutableStep, step: Step, action: ActionOf<'report'>, feed: StepFeed): () => Promise<StepOutcome>;
}

/** One step of training in flight: its three lanes. */
export class TrainingStep {
  private readonly compiled: ExecutableStep;
  private readonly done: Completions;
  /** Where each lane is, and when any of them last got on. */
  private readonly at = new Map<Lane, Step>();
  private progressMs = performance.now();

  constructor(
    private readonly engine: LaneEngine,
    private readonly feed: StepFeed,
    private readonly stallMs: number,
  ) {
    this.compiled = engine.compiled(feed);
    this.done = new Completions(this.compiled.schedule.steps);
  }

  run(hostLaneBefore: Promise<void>, outcomeBefore: Promise<unknown>) {
    let readReport: (() => Promise<StepOutcome>) | null = null;
    const guarded = async (lane: Promise<void>) => {
      try {
        await lane;
      } catch (error) {
        this.done.fail(error);
        throw error;
      }
    };
    const host = guarded(
      hostLaneBefore.then(() =>
        this.copies('host', async (step) => {
          const { action } = step;
          if (action.type === 'report') {
            // Its staging slot is free once the report before has been read.
            await outcomeBefore;
            readReport = this.engine.report(this.compiled, step, action, this.feed);
          } else if (action.type === 'feed') {
            this.engine.feed(this.compiled, action, this.feed);
            this.engine.recordStep(this.compiled, this.feed, step);
          } else if (action.type === 'announce') await this.engine.copies.announce(action);
        }),
      ),
    );
    const lanes = Promise.all([host, guarded(this.compute()), guarded(this.copies('comm'))]);
    const watch = setInterval(() => this.failIfStalled(), Math.min(this.stallMs / 4, 5000));
    const submitted = lanes.then(() => undefined).finally(() => clearInterval(watch));
    const outcome = submitted.then(() => {
      if (!readReport) throw new StudioError('internal', 'the schedule has no report step');
      return readReport();
    });
    submitted.catch(() => undefined);
    outcome.catch(() => undefined);
    const hostLane = host.catch(() => undefined);
    return { submitted, outcome, hostLane };
  }

  /**
   * A lane of copies, as many under way at once as have staging slots. What they submit keeps the lane's order; a step that
   * is no copy runs by itself, when those before it are done.
   */
  private async copies(lane: Lane, alone: (step: Step) => Promise<void> = async () => undefined): Promise<void> {
    let before = Promise.resolve();
    const underWay = new Map<Step, Promise<void>>();
    const end = (steps: Iterable<Promise<void>>) => this.done.orFailure(Promise.all(steps));
    for (const step of this.stepsOf(lane)) {
      await this.ready(step);
      const copy = this.begin(step, before, () => end(storesInto(step, underWay)));
      if (!copy) {
        await end(underWay.values());
        await this.done.orFailure(alone(step));
        this.mark(step);
        continue;
      }
      copy.then(heard, () => undefined);
      const { submitted, done } = await this.done.orFailure(copy);
      before = submitted;
      // What these read on the device may be taken once their commands are submitted: the queue keeps their order. Who reads
      // what they bring to the host waits for the peer's word, or for the store itself.
      if (step.action.type === 'publish' || step.action.type === 'store')
        submitted.then(
          () => this.markDone(step),
          () => undefined,
        );
      const ended = done.then(() => this.mark(step));
      underWay.set(step, ended);
      // What follows may wait for this very step: its failure must end that wait.
      ended.then(
        () => underWay.delete(step),
        (error) => this.done.fail(error),
      );
    }
    await end(underWay.values());
  }

  /** Begins a step that copies once `read` has resolved where it reads host tensors; undefined for any other step. */
  private begin(step: Step, before: Promise<void>, read: () => Promise<unknown>): Promise<UnderWay> | undefined {
    const { action } = step;
    const { compiled, feed } = this;
    const { copies } = this.engine;
    if (action.type === 'publish') return copies.publish(compiled, step, action, feed, before);
    if (action.type === 'collect') return copies.collect(compiled, step, action, feed, before);
    if (action.type === 'store') return copies.store(compiled, step, action, feed, before);
    if (action.type === 'keep') return copies.keep(compiled, step, action, feed, before);
    if (action.type === 'fetch') return read().then(() => copies.fetch(compiled, step, action, feed, before));
    return undefined;
  }

  /** Visit by visit: wait for all that the visit needs, encode it, submit it once. */
  private async compute(): Promise<void> {
    for (const visit of computeVisits(this.compiled.schedule.steps)) {
      for (const step of visit) await this.ready(step);
      const { trace } = this.feed;
      if (trace) await this.engine.submitTraced(this.feed, visit, trace);
      else {
        const encoder = this.engine.encoder();
        this.engine.encodeDispatches(encoder, this.feed, visit);
        this.engine.submit(encoder);
      }
      for (const step of visit) this.markDone(step);
    }
  }

  /** Waits for the steps that the schedule names. */
  private async ready(step: Step): Promise<void> {
    this.at.set(step.lane, step);
    const { trace } = this.feed;
    if (!trace) return this.done.all(step.waits);
    for (const other of step.waits) await trace.waiting(step.id, other, this.done.all([other]));
    trace.begin(step.id);
  }

  private mark(step: Step): void {
    this.feed.trace?.end(step.id);
    this.markDone(step);
  }

  private markDone(step: Step): void {
    this.progressMs = performance.now();
    this.done.mark(step.id);
  }

  /** A wait that no peer's time limit ends is a mistake of the plan or of ours: it says where each lane stands. */
  private failIfStalled(): void {
    if (performance.now() - this.progressMs < this.stallMs) return;
    const { steps } = this.compiled.schedule;
    const name = ({ id, label, unit }: Step) => `step ${id} (${label} of ${unit})`;
    const lanes = [...this.at].map(([lane, step]) => {
      const missing = this.done.missing(step.waits).map((id) => name(steps[id]));
      return `${lane} at ${name(step)}${missing.length ? `, which waits for ${missing.join(' and ')}` : ''}`;
    });
    this.done.fail(
      new StudioError(
        'timeout',
        `Nothing of step ${this.feed.step} has got on for ${this.stallMs} ms: ${lanes.join('; ')}. Please report this.`,
        { step: this.feed.step },
      ),
    );
  }

  private stepsOf(lane: Lane): Step[] {
    return this.compiled.schedule.steps.filter((step) => step.lane === lane);
  }
}

/** A copy may fail when another's failure has ended its lane already, and nobody asks any more. */
function heard({ submitted, done }: UnderWay): void {
  submitted.catch(() => undefined);
  done.catch(() => undefined);
}

/** The copies under way that bring to the host what a fetch reads. */
function storesInto({ action }: Step, underWay: ReadonlyMap<Step, Promise<void>>): Promise<void>[] {
  if (action.type !== 'fetch') return [];
  const read = action.parts.map(({ host }) => host);
  return [...underWay].flatMap(([{ action: other }, ended]) => {
    const overlaps = (a: Range, b: Range) =>
      a.tensor === b.tensor && a.offsetBytes < b.offsetBytes + b.bytes && b.offsetBytes < a.offsetBytes + a.bytes;
    const stores = other.type === 'store' || other.type === 'keep';
    return stores && other.parts.some(({ host }) => read.some((r) => overlaps(r, host))) ? [ended] : [];
  });
}
