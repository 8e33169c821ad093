import type { Step } from '../schedule/schedule.ts';

interface Waiter {
  readonly resolve: () => void;
  readonly reject: (error: unknown) => void;
}

/** Which steps of one step of training are done, for the lanes that wait for them. */
export class Completions {
  private readonly done = new Set<number>();
  private readonly waiters = new Map<number, Waiter[]>();
  private failure: { error: unknown } | null = null;
  private readonly awaited: ReadonlySet<number>;
  private rejectFailed: (error: unknown) => void = () => undefined;
  private readonly failed = new Promise<never>((_, reject) => {
    this.rejectFailed = reject;
  });

  constructor(steps: readonly Step[]) {
    this.awaited = new Set(steps.flatMap((step) => step.waits));
    this.failed.catch(() => undefined);
  }

  mark(step: number): void {
    if (!this.awaited.has(step)) return;
    this.done.add(step);
    for (const { resolve } of this.waiters.get(step) ?? []) resolve();
    this.waiters.delete(step);
  }

  /** Ends all waits, those to come as well, with that error. */
  fail(error: unknown): void {
    this.failure ??= { error };
    this.rejectFailed(this.failure.error);
    for (const list of this.waiters.values()) for (const { reject } of list) reject(error);
    this.waiters.clear();
  }

  /** Resolves when all of these are done. */
  async all(steps: readonly number[]): Promise<void> {
    if (this.failure) throw this.failure.error;
    for (const step of steps) if (!this.done.has(step)) await this.one(step);
  }

  /** Those of the steps that are not done yet. */
  missing(steps: readonly number[]): number[] {
    return steps.filter((step) => !this.done.has(step));
  }

  /** Awaits work that some step under way has to let go on: ends when one fails. */
  orFailure<T>(work: Promise<T>): Promise<T> {
    return Promise.race([work, this.failed]);
  }

  private one(step: number): Promise<void> {
    if (this.failure) return Promise.reject(this.failure.error);
    return new Promise((resolve, reject) => {
      this.waiters.set(step, [...(this.waiters.get(step) ?? []), { resolve, reject }]);
    });
  }
}
