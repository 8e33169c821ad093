import type { Hint } from '../contract.ts';

/** At most this often for each run. */
const EVERY_MS = 100;

/**
 * Turns news about runs into hints: the first at once, then one every 100 ms for each run that has any, with the newest
 * sequence. What it holds does not grow with the number of listeners or of events.
 */
export class Hub {
  readonly #send: (hint: Hint) => void;
  readonly #waiting = new Map<string, { lastSeq: number; news: boolean; timer: NodeJS.Timeout }>();
  #closed = false;

  constructor(send: (hint: Hint) => void) {
    this.#send = send;
  }

  /** There is something new about a run: its state, or events up to `lastSeq`. */
  notify(runId: string, lastSeq: number): void {
    if (this.#closed) return;
    const waiting = this.#waiting.get(runId);
    if (waiting) {
      waiting.lastSeq = Math.max(waiting.lastSeq, lastSeq);
      waiting.news = true;
      return;
    }
    this.#send({ runId, lastSeq });
    this.#waiting.set(runId, { lastSeq, news: false, timer: setTimeout(() => this.#again(runId), EVERY_MS) });
  }

  #again(runId: string): void {
    const waiting = this.#waiting.get(runId);
    this.#waiting.delete(runId);
    if (waiting?.news) this.notify(runId, waiting.lastSeq);
  }

  close(): void {
    this.#closed = true;
    for (const { timer } of this.#waiting.values()) clearTimeout(timer);
    this.#waiting.clear();
  }
}
