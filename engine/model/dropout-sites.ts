import type { DropoutSite } from '../ops/dropout/drop.ts';
import { maskKeys } from '../ops/dropout/dropout-mask.ts';
import type { TraceContext } from './model.ts';

/** More places than a model drops at: the micro-batches of a step have numbers of their own. */
const SITES_OF_A_MICRO_BATCH = 65_536;

/** Numbers the places where a model drops; each has its own random numbers, a function of the step, site, rank and element. */
export class DropoutSites {
  private next: number;

  constructor(
    private readonly dropout: number,
    private readonly context: TraceContext,
  ) {
    this.next = (context.microBatch ?? 0) * SITES_OF_A_MICRO_BATCH;
  }

  site(): DropoutSite {
    const { seed, rank, evaluate } = this.context;
    return { dropout: evaluate ? 0 : this.dropout, ...maskKeys(seed, rank, this.next++) };
  }

  /** `body`, made to use the same sites each time that it runs: a block that is computed again drops the same elements. */
  repeatable<T>(body: () => T): () => T {
    let first: number | null = null;
    return () => {
      first ??= this.next;
      this.next = first;
      return body();
    };
  }
}

/** The name of a micro-batch's batch tensor: the first has the plain one. */
export function batchName(name: 'input' | 'target', microBatch: number): string {
  return microBatch === 0 ? name : `${name} ${microBatch}`;
}
