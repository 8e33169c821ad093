import { Worker } from 'node:worker_threads';
import koffi from 'koffi';
import { StudioError } from '../errors.ts';

/** What one thread takes at a time: small enough that all of them end together, large beside what a turn costs (1 µs). */
const CHUNK_BYTES = 2 ** 20;

/**
 * Where things lie in the memory that the threads share, in 32-bit words. The count of posted jobs; of jobs that have ended;
 * whether the threads are to end, and how many are not idle; then a ring of jobs, a cache line each: target, source, bytes and bytes of a chunk as float64 (addresses are below 2^53),
 * then how many chunks nobody has claimed and how many are not done.
 */
const RING = {
  posted: 0,
  ended: 16,
  stop: 32,
  busy: 48,
  firstJob: 64,
  jobWords: 16,
  slots: 64,
  /** Within a job, in float64. */
  wide: 0,
  /** Within a job, in words. */
  unclaimed: 8,
  unfinished: 9,
} as const;
export type RingLayout = typeof RING;

/** How long threads have for the chunk that they are at. */
const END_MS = 1000;

/** ES2024, which TypeScript's library for ES2023 does not have. */
const { waitAsync } = Atomics as unknown as {
  waitAsync(
    words: Int32Array,
    at: number,
    value: number,
  ): { readonly async: boolean; readonly value: Promise<unknown> };
};

interface Job {
  readonly target: Uint8Array;
  readonly source: Uint8Array;
  readonly resolve: () => void;
  readonly reject: (error: Error) => void;
}

/**
 * Threads that do nothing but copy. The main thread writes down where from and where to, some microseconds however long the
 * copy is; the threads share its chunks. They start with the first copy and end with the process, which they do not keep alive
 * while nothing is copied.
 */
export class CopyThreads {
  private readonly state = new SharedArrayBuffer((RING.firstJob + RING.slots * RING.jobWords) * 4);
  private readonly words = new Int32Array(this.state);
  private readonly numbers = new Float64Array(this.state);
  private workers: { readonly worker: Worker; readonly ended: Promise<void> }[] = [];
  /** What each slot of the ring holds, the numbers of the first of them and of the next, and what has found no slot yet. */
  private readonly ring: (Job | null)[] = Array.from({ length: RING.slots }, () => null);
  private oldest = 0;
  private next = 0;
  private readonly waiting: Job[] = [];
  private watching = false;
  private broken: StudioError | null = null;

  constructor(
    private readonly threads: number,
    private readonly program = new URL('./copy-thread.mjs', import.meta.url),
  ) {}

  /**
   * Resolves when all of source is in target, which is as long. Both stay where they are until it settles: whatever it settles
   * as, no thread touches them after. Rejects with StudioError `internal` when a thread has ended.
   */
  copy(target: Uint8Array, source: Uint8Array): Promise<void> {
    if (this.broken) return Promise.reject(this.broken);
    return new Promise((resolve, reject) => {
      this.waiting.push({ target, source, resolve, reject });
      this.start();
      this.post();
      if (!this.watching) void this.watch();
    });
  }

  /** Ends the threads, each after the chunk that it is at; copies that are not done then reject. */
  async close(): Promise<void> {
    await this.end(new StudioError('internal', 'the threads that copy were closed'));
  }

  private start(): void {
    if (this.workers.length > 0) return;
    Atomics.store(this.words, RING.busy, this.threads);
    // Node ends its threads when the process exits; one that is in the middle of a call would then abort the process.
    process.once('exit', () => this.untilIdle());
    this.workers = Array.from({ length: this.threads }, () => {
      const worker = new Worker(this.program, { execArgv: [], workerData: { state: this.state, layout: RING } });
      let why = 'it ended by itself';
      worker.on('error', (error) => {
        why = error.message;
      });
      const ended = new Promise<void>((resolve) => worker.once('exit', () => resolve()));
      void ended.then(() => this.end(new StudioError('internal', `A thread that copies has ended: ${why}.`)));
      worker.unref();
      return { worker, ended };
    });
  }

  /** Hands what waits to the threads, as much as the ring has room for. */
  private post(): void {
    const { words, numbers, ring } = this;
    while (this.waiting.length > 0 && ring[this.next % RING.slots] === null) {
      const job = this.waiting.shift()!;
      const { target, source } = job;
      ring[this.next % RING.slots] = job;
      const at = RING.firstJob + (this.next % RING.slots) * RING.jobWords;
      const bytes = target.byteLength;
      const chunks = Math.ceil(bytes / CHUNK_BYTES);
      const chunk = Math.ceil(bytes / chunks / 64) * 64;
      numbers.set([Number(koffi.address(target)), Number(koffi.address(source)), bytes, chunk], at / 2 + RING.wide);
      Atomics.store(words, at + RING.unfinished, Math.ceil(bytes / chunk));
      // Last: from here on threads take it.
      Atomics.store(words, at + RING.unclaimed, Math.ceil(bytes / chunk));
      this.next++;
      Atomics.add(words, RING.posted, 1);
      Atomics.notify(words, RING.posted, 1);
    }
  }

  /** Settles copies as they end, for as long as there are any: one wake-up for all that have ended by then. */
  private async watch(): Promise<void> {
    this.watching = true;
    this.workers[0].worker.ref();
    while (!this.broken) {
      const seen = Atomics.load(this.words, RING.ended);
      this.settle();
      if (this.oldest === this.next) break;
      const woken = waitAsync(this.words, RING.ended, seen);
      if (woken.async) await woken.value;
    }
    this.watching = false;
    if (!this.broken) this.workers[0].worker.unref();
  }

  private settle(): void {
    for (let number = this.oldest; number < this.next; number++) {
      const slot = number % RING.slots;
      const job = this.ring[slot];
      const at = RING.firstJob + slot * RING.jobWords;
      if (job && Atomics.load(this.words, at + RING.unfinished) === 0) {
        this.ring[slot] = null;
        job.resolve();
      }
      if (number === this.oldest && this.ring[slot] === null) this.oldest++;
    }
    this.post();
  }

  /** Has each thread end after the chunk that it is at. */
  private stop(): void {
    Atomics.store(this.words, RING.stop, 1);
    Atomics.notify(this.words, RING.posted);
  }

  /** Stops the threads and blocks until none is at anything. */
  private untilIdle(): void {
    if (this.broken) return;
    this.stop();
    const until = performance.now() + END_MS;
    for (let busy = 1; busy > 0 && performance.now() < until; ) {
      busy = Atomics.load(this.words, RING.busy);
      if (busy > 0) Atomics.wait(this.words, RING.busy, busy, END_MS / 10);
    }
  }

  /** Ends all threads, then rejects what they have not done: not before, since until then one may still copy. */
  private async end(error: StudioError): Promise<void> {
    if (this.broken) return;
    this.broken = error;
    this.stop();
    const late = setTimeout(() => {
      for (const { worker } of this.workers) void worker.terminate();
    }, END_MS);
    for (const { worker } of this.workers) worker.ref();
    await Promise.all(this.workers.map(({ ended }) => ended));
    clearTimeout(late);
    for (const job of [...this.ring, ...this.waiting]) job?.reject(error);
    Atomics.add(this.words, RING.ended, 1);
    Atomics.notify(this.words, RING.ended);
  }
}
