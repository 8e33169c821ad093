import type { Schedule } from './schedule.ts';

/** From when to when, in milliseconds of this process's clock (performance.now). */
export interface Span {
  readonly startMs: number;
  readonly endMs: number;
}

/** Who kept the time of the compute lane: the device, its clock brought to the host's within so much; or the host. */
export type ComputeClock = { readonly kind: 'device'; readonly alignedWithinMs: number } | { readonly kind: 'host' };

/** What was waited for: a step of the schedule by its id, or something else in words. */
export type Cause = number | string;

export interface TracedWait extends Span {
  readonly step: number;
  readonly cause: Cause;
}

/** When each step of one step of training ran, and what it waited for. */
export interface StepTimes {
  readonly clock: ComputeClock;
  /** By step id. */
  readonly spans: readonly Span[];
  readonly waits: readonly TracedWait[];
}

/** Takes down when the steps of one step of training begin and end, by the host's clock. A feed without one costs nothing. */
export class StepTrace {
  protected readonly spans = new Map<number, Span>();
  protected readonly waits: TracedWait[] = [];

  /** The step's waits are over and its work begins; said again, the later moment counts. */
  begin(step: number): void {
    const startMs = performance.now();
    this.spans.set(step, { startMs, endMs: startMs });
  }

  /** Its work is done, as the host sees it; said again, the later moment counts. */
  end(step: number): void {
    const { startMs } = this.spans.get(step)!;
    this.spans.set(step, { startMs, endMs: performance.now() });
  }

  /** Awaits `work` for a step and takes down how long. */
  async waiting<T>(step: number, cause: Cause, work: Promise<T>): Promise<T> {
    const startMs = performance.now();
    const result = await work;
    this.waits.push({ step, cause, startMs, endMs: performance.now() });
    return result;
  }

  /** What was taken down, once the step of training is done. */
  finish({ steps }: Pick<Schedule, 'steps'>): Promise<StepTimes> {
    const spans = steps.map(({ id }) => this.spans.get(id)!);
    return Promise.resolve({ clock: { kind: 'host' }, spans, waits: this.waits });
  }
}

/** Awaits `work`, on record where the step of training is traced. */
export function traced<T>(trace: StepTrace | undefined, step: number, cause: Cause, work: Promise<T>): Promise<T> {
  return trace ? trace.waiting(step, cause, work) : work;
}
