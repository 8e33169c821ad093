import type { StepEvent } from '../../engine/trainer/events.ts';

/** Times of a run by step: of each step that all its ranks reported, that of the slowest; not of the run's first, which pays for what is made once. */
export class StepTimes {
  readonly #world: number;
  readonly #open = new Map<number, { ranks: number; slowestMs: number }>();
  readonly #ms = new Map<number, number>();
  #first: number | null = null;

  /** `world`: how many ranks report each step. */
  constructor(world: number) {
    this.#world = world;
  }

  add({ step, iterationMs }: StepEvent): void {
    this.#first ??= step;
    const { ranks = 0, slowestMs = 0 } = this.#open.get(step) ?? {};
    const open = { ranks: ranks + 1, slowestMs: Math.max(slowestMs, iterationMs) };
    if (open.ranks < this.#world) {
      this.#open.set(step, open);
      return;
    }
    this.#open.delete(step);
    if (step !== this.#first) this.#ms.set(step, open.slowestMs);
  }

  /** Milliseconds by step. */
  get byStep(): ReadonlyMap<number, number> {
    return this.#ms;
  }
}

/** The quickest and the slowest of some steps. */
export interface StepSpread {
  readonly minMs: number;
  readonly maxMs: number;
  readonly steps: number;
}

/** Medians over the steps that all runs have which have any. */
export interface CommonMedians {
  /** By run; null where it has none of these steps. */
  readonly medianMs: readonly (number | null)[];
  /** By run: how far its steps lie apart, and how many they are. */
  readonly spread: readonly (StepSpread | null)[];
  /** The steps; null when there are none, and each median is over the run's own steps. */
  readonly steps: { readonly first: number; readonly last: number; readonly count: number } | null;
}

/** The median time of each run over one set of steps, so that none is better for having stopped before the slow ones. */
export function commonMedians(runs: readonly StepTimes[]): CommonMedians {
  const timed = runs.map(({ byStep }) => byStep).filter(({ size }) => size > 0);
  const [fewest, ...others] = [...timed].sort((a, b) => a.size - b.size);
  const common = fewest ? [...fewest.keys()].filter((step) => others.every((other) => other.has(step))) : [];
  const ofRuns = runs.map(({ byStep }) =>
    common.length === 0 ? [...byStep.values()] : common.flatMap((step) => byStep.get(step) ?? []),
  );
  return {
    medianMs: ofRuns.map(median),
    spread: ofRuns.map(spreadOf),
    steps:
      common.length === 0 ? null : { first: common.reduce(least), last: common.reduce(most), count: common.length },
  };
}

const least = (a: number, b: number) => Math.min(a, b);
const most = (a: number, b: number) => Math.max(a, b);

function spreadOf(values: readonly number[]): StepSpread | null {
  if (values.length === 0) return null;
  return { minMs: values.reduce(least), maxMs: values.reduce(most), steps: values.length };
}

function median(values: readonly number[]): number | null {
  if (values.length === 0) return null;
  const sorted = Float64Array.from(values).sort();
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}
