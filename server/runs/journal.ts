import { StudioError } from '../../engine/errors.ts';
import type { RunEvent } from '../../engine/trainer/events.ts';
import type { StudioDb } from '../db/client.ts';
import { CHUNK_VERSION, encodeEvent } from '../db/event-codec.ts';
import type { Prisma } from '../db/generated/client.ts';
import { isFull } from '../db/retry.ts';
import type { RunTotals } from './run-totals.ts';

/** A chunk is closed when it passes this, so a page of events reads little that it does not need. */
const CHUNK_BYTES = 64 * 1024;
/** What one transaction writes at most. */
const FLUSH_BYTES = 1024 * 1024;
/** Time between two flushes, so at most 10 a second. */
const FLUSH_MS = 100;
/** Time to the next try when the disk was full. */
const FULL_RETRY_MS = 1000;
/** Events that wait for a database that does not take them. Beyond this the run ends instead of the server. */
const MAX_WAITING_BYTES = 64 * 1024 * 1024;
/** Lines of log that a run keeps in the database; the workers' log files go on. */
const MAX_LOG_EVENTS = 20_000;
const MAX_LINE_CHARS = 4000;

export interface JournalOptions {
  readonly db: StudioDb;
  readonly runId: string;
  /** The last event that is stored already. */
  readonly lastSeq: number;
  /** Null when events before `lastSeq` are not counted here: the totals in the row are then left as they are. */
  readonly totals: RunTotals | null;
  /** Called after events are stored, never before. */
  readonly onStored: (lastSeq: number) => void;
  /** Called once when events cannot be stored any more. */
  readonly onBroken: (error: StudioError) => void;
}

/**
 * The one writer of a run's events. It numbers them from 1 without holes, gathers them for 100 ms and stores them with
 * the run's totals in one transaction; what readers are told of is stored before.
 */
export class RunJournal {
  readonly #options: JournalOptions;
  #seq: number;
  #waiting: Uint8Array[] = [];
  #waitingBytes = 0;
  /** The chunk that still grows: rewritten whole with every flush. */
  #chunk: { firstSeq: number; lastSeq: number; bytes: Uint8Array };
  #timer: NodeJS.Timeout | null = null;
  #flushing: Promise<void> | null = null;
  #broken = false;
  /** The last flush found no room. */
  #isFull = false;
  #closing = false;
  #hasEnd = false;
  #logEvents = 0;

  constructor(options: JournalOptions) {
    this.#options = options;
    this.#seq = options.lastSeq;
    this.#chunk = emptyChunk(options.lastSeq + 1);
  }

  /** Takes an event; it is stored within about 100 ms. Nothing is taken after the journal broke or was finished. */
  append(event: RunEvent): void {
    if (this.#broken || this.#closing) return;
    const kept = this.#bounded(event);
    if (kept === null) return;
    this.#options.totals?.add(kept);
    const record = encodeEvent(kept);
    this.#waiting.push(record);
    this.#waitingBytes += record.length;
    if (this.#waitingBytes > MAX_WAITING_BYTES)
      this.#break(
        new StudioError(
          'io',
          this.#isFull
            ? 'events cannot be stored: the disk is full'
            : 'the database does not keep up with the events of this run',
        ),
      );
    else if (!this.#flushing) this.#timer ??= setTimeout(() => this.#startFlush(), FLUSH_MS);
  }

  /**
   * Stores what waits, this last event and the run's last change together, surviving a power failure. Rejects if it
   * cannot, and may then be called again.
   */
  async finish(event: RunEvent, change: Prisma.RunUpdateInput): Promise<void> {
    this.#closing = true;
    if (this.#timer) clearTimeout(this.#timer);
    this.#timer = null;
    await this.#flushing;
    while (this.#waitingBytes > FLUSH_BYTES) await this.#store({}, false);
    if (!this.#hasEnd) this.#waiting.push(encodeEvent(event));
    this.#hasEnd = true;
    await this.#store(change, true);
  }

  #bounded(event: RunEvent): RunEvent | null {
    if (event.event !== 'log') return event;
    if (this.#logEvents > MAX_LOG_EVENTS) return null;
    if (++this.#logEvents > MAX_LOG_EVENTS) {
      return { event: 'log', rank: null, line: 'Further lines are only in the files under logs/ of this run.' };
    }
    return event.line.length > MAX_LINE_CHARS ? { ...event, line: `${event.line.slice(0, MAX_LINE_CHARS)} …` } : event;
  }

  #startFlush(): void {
    this.#timer = null;
    this.#flushing ??= this.#store({}, false)
      .then(
        () => FLUSH_MS,
        (cause: unknown) => {
          // Room may be made meanwhile: what waits is kept, up to its bound, and stored then.
          this.#isFull = isFull(cause);
          if (this.#isFull) return FULL_RETRY_MS;
          const why = cause instanceof Error ? cause.message : String(cause);
          this.#break(new StudioError('io', `events cannot be stored: ${why}`, {}, { cause }));
          return FLUSH_MS;
        },
      )
      .then((pauseMs) => {
        this.#flushing = null;
        if (this.#waiting.length && !this.#broken && !this.#closing)
          this.#timer ??= setTimeout(() => this.#startFlush(), pauseMs);
      });
  }

  /** One transaction: the waiting records, up to 1 MiB unless it is the last one, and the run's row. */
  async #store(change: Prisma.RunUpdateInput, last: boolean): Promise<void> {
    const { db, runId, totals } = this.#options;
    let taken = 0;
    let bytes = 0;
    while (taken < this.#waiting.length && (last || bytes < FLUSH_BYTES)) bytes += this.#waiting[taken++].length;
    const chunks = appendRecords(this.#chunk, this.#waiting.slice(0, taken));
    const changed = taken ? chunks : [];
    const lastSeq = this.#seq + taken;
    const data = { lastSeq, ...(totals ? columns(totals, last) : {}), ...change };
    await db.write(last ? 'full' : 'normal', (prisma) =>
      prisma.$transaction([
        ...changed.map((chunk) => {
          const stored = { lastSeq: chunk.lastSeq, bytes: chunk.bytes as Uint8Array<ArrayBuffer> };
          return prisma.eventChunk.upsert({
            where: { runId_firstSeq: { runId, firstSeq: chunk.firstSeq } },
            create: { runId, firstSeq: chunk.firstSeq, ...stored },
            update: stored,
          });
        }),
        prisma.run.update({ where: { id: runId }, data }),
      ]),
    );
    this.#isFull = false;
    this.#waiting.splice(0, taken);
    this.#waitingBytes -= bytes;
    this.#seq = lastSeq;
    const open = chunks[chunks.length - 1];
    this.#chunk = open.bytes.length < CHUNK_BYTES ? open : emptyChunk(lastSeq + 1);
    this.#options.onStored(lastSeq);
  }

  #break(error: StudioError): void {
    this.#broken = true;
    this.#waiting = [];
    this.#waitingBytes = 0;
    if (this.#timer) clearTimeout(this.#timer);
    this.#timer = null;
    this.#options.onBroken(error);
  }
}

type Chunk = { firstSeq: number; lastSeq: number; bytes: Uint8Array };

function emptyChunk(firstSeq: number): Chunk {
  return { firstSeq, lastSeq: firstSeq - 1, bytes: Uint8Array.of(CHUNK_VERSION) };
}

/** `chunk` grown by the records, and the chunks that follow when it is full. The input is not changed. */
function appendRecords(chunk: Chunk, records: readonly Uint8Array[]): Chunk[] {
  const chunks: Chunk[] = [];
  let { firstSeq, lastSeq } = chunk;
  let parts = [chunk.bytes];
  let size = chunk.bytes.length;
  const close = () => chunks.push({ firstSeq, lastSeq, bytes: Uint8Array.from(Buffer.concat(parts)) });
  for (const record of records) {
    if (size >= CHUNK_BYTES) {
      close();
      firstSeq = lastSeq + 1;
      parts = [Uint8Array.of(CHUNK_VERSION)];
      size = 1;
    }
    parts.push(record);
    size += record.length;
    lastSeq++;
  }
  close();
  return chunks;
}

function columns(totals: RunTotals, exact: boolean): Prisma.RunUpdateInput {
  const { start } = totals;
  return {
    stepsDone: totals.stepsDone,
    lossMean: totals.lossMean === null ? null : String(totals.lossMean),
    iterationMs: totals.iterationMs(exact),
    peakBytes: totals.peakBytes,
    liveBytes: totals.liveBytes,
    ...(totals.byCategory ? { byCategory: totals.byCategory } : {}),
    ...(start ? { params: start.params, adapters: start.adapters, predicted: start.predicted } : {}),
  };
}
