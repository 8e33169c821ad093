import type { BytesByCategory, RunEvent, StepEvent, WireNumber } from '../../engine/trainer/events.ts';

/** What a run's events add up to: the numbers that lists and comparisons show without reading the events again. */
export class RunTotals {
  stepsDone = 0;
  lossMean: WireNumber | null = null;
  peakBytes: number | null = null;
  liveBytes: number | null = null;
  byCategory: BytesByCategory | null = null;
  start: Extract<RunEvent, { event: 'start' }> | null = null;
  readonly #world: number;
  readonly #open = new Map<number, { ranks: number; slowestMs: number }>();
  #firstStep: number | null = null;
  #times = new Float64Array(256);
  #count = 0;
  #median: number | null = null;
  #medianOf = 0;

  /** `world`: how many ranks report each step. */
  constructor(world: number) {
    this.#world = world;
  }

  add(event: RunEvent): void {
    if (event.event === 'start') this.start = event;
    if (event.event === 'step') this.#addStep(event);
  }

  #addStep({ step, lossMean, iterationMs, memory }: StepEvent): void {
    this.#firstStep ??= step;
    if (step + 1 >= this.stepsDone) {
      this.stepsDone = step + 1;
      this.lossMean = lossMean;
    }
    this.peakBytes = Math.max(this.peakBytes ?? 0, memory.peakBytes);
    if (this.liveBytes === null || memory.liveBytes > this.liveBytes) {
      this.liveBytes = memory.liveBytes;
      this.byCategory = memory.byCategory;
    }
    const open = this.#open.get(step) ?? { ranks: 0, slowestMs: 0 };
    open.ranks++;
    open.slowestMs = Math.max(open.slowestMs, iterationMs);
    if (open.ranks < this.#world) {
      this.#open.set(step, open);
      return;
    }
    this.#open.delete(step);
    // The first step pays for what is made once: pipelines, caches, a cold file.
    if (step !== this.#firstStep) this.#push(open.slowestMs);
  }

  #push(ms: number): void {
    if (this.#count === this.#times.length) {
      const grown = new Float64Array(2 * this.#count);
      grown.set(this.#times);
      this.#times = grown;
    }
    this.#times[this.#count++] = ms;
  }

  /**
   * Median over the steps after the first of the slowest rank's time; null before there is one. `exact: false` may give
   * the median of up to 2 % fewer steps, so that asking after every step stays cheap.
   */
  iterationMs(exact: boolean): number | null {
    if (this.#count - this.#medianOf > (exact ? 0 : this.#medianOf * 0.02)) {
      const sorted = this.#times.slice(0, this.#count).sort();
      const middle = this.#count >> 1;
      this.#median = this.#count % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
      this.#medianOf = this.#count;
    }
    return this.#median;
  }
}
