import { appendEvents, emptyRunLog, type RunLog, type SequencedEvent } from './run-log.ts';

/** A page of a run's events, after a sequence number. */
export interface EventSlice {
  readonly events: readonly SequencedEvent[];
  readonly lastSeq: number;
}

/** What a follower needs from outside; tests give their own. */
export interface FollowerSource {
  /** Events after `afterSeq`, in order. Rejects on any failure; the follower tries again. */
  fetchPage(afterSeq: number, signal: AbortSignal): Promise<EventSlice>;
  /** Calls back on every hint that there is something new, and whenever a connection was made anew. Returns an undo. */
  onHint(callback: (lastSeq: number | null) => void): () => void;
  setTimer(callback: () => void, ms: number): () => void;
}

/** Hints are volatile and may be lost: ask anyway this often while the run goes on. */
const ASK_ANYWAY_MS = 4000;
const RETRY_MS = [500, 1000, 2000, 5000, 10_000] as const;

/**
 * Follows one run: pulls its events from the last known sequence until caught up, then on every hint. One pull at a time,
 * so that nothing comes twice; every pull starts at the last sequence, so that nothing is missed, however often the
 * connection breaks.
 */
export class RunFollower {
  readonly log: RunLog = emptyRunLog();
  /** Why the last pull failed, until one succeeds. */
  problem: string | null = null;
  /** Whether the first pull has come to its end. */
  caughtUp = false;
  /** Grows with every change, for readers that compare. */
  version = 0;

  private readonly source: FollowerSource;
  private readonly listeners = new Set<() => void>();
  private readonly abort = new AbortController();
  private cancelTimer: (() => void) | null = null;
  private stopHints: (() => void) | null = null;
  private pulling = false;
  private again = false;
  private failures = 0;

  constructor(source: FollowerSource) {
    this.source = source;
  }

  start(): void {
    this.stopHints = this.source.onHint((lastSeq) => {
      if (lastSeq === null || lastSeq > this.log.lastSeq) void this.pull();
    });
    void this.pull();
  }

  stop(): void {
    this.stopHints?.();
    this.cancelTimer?.();
    this.abort.abort();
  }

  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Pulls until nothing is new. A call during a pull makes it look once more at its end. */
  async pull(): Promise<void> {
    if (this.pulling) {
      this.again = true;
      return;
    }
    this.pulling = true;
    this.cancelTimer?.();
    try {
      do {
        this.again = false;
        await this.pullOnce();
      } while (this.again && !this.abort.signal.aborted);
      this.failures = 0;
      const changed = this.problem !== null || !this.caughtUp;
      this.problem = null;
      this.caughtUp = true;
      if (changed) this.changed();
    } catch (error) {
      if (this.abort.signal.aborted) return;
      this.problem = error instanceof Error ? error.message : String(error);
      this.failures++;
      this.changed();
    } finally {
      this.pulling = false;
    }
    this.schedule();
  }

  private async pullOnce(): Promise<void> {
    for (;;) {
      const page = await this.source.fetchPage(this.log.lastSeq, this.abort.signal);
      if (this.abort.signal.aborted) return;
      const appended = appendEvents(this.log, page.events);
      if (appended) this.changed();
      if (this.log.lastSeq >= page.lastSeq) return;
      // The server knows of more but gave nothing that fits: ask again later, not at once and for ever.
      if (!appended) throw new Error('The server did not send the events that follow. The page asks again.');
    }
  }

  private schedule(): void {
    if (this.abort.signal.aborted) return;
    const ms = this.failures
      ? RETRY_MS[Math.min(this.failures, RETRY_MS.length) - 1]
      : this.log.end
        ? null
        : ASK_ANYWAY_MS;
    if (ms !== null) this.cancelTimer = this.source.setTimer(() => void this.pull(), ms);
  }

  private changed(): void {
    this.version++;
    for (const listener of this.listeners) listener();
  }
}
