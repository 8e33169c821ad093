import { ExperimentConfig } from '../../engine/config.ts';
import { StudioError } from '../../engine/errors.ts';
import { fullStrategyWords } from '../../engine/strategy-words.ts';
import type { BytesByCategory, RunEvent, WireNumber } from '../../engine/trainer/events.ts';
import type { Run, RunState, RunSummary } from '../contract.ts';
import type { StudioDb } from '../db/client.ts';
import { decodeChunk } from '../db/event-codec.ts';
import type { Checkpoint as CheckpointRow, Prisma, Run as RunRow } from '../db/generated/client.ts';
import { RUN_ID } from './run-id.ts';

export type { CheckpointRow, RunRow };

const LAST_CHUNKS = 8;

export type NumberedEvent = RunEvent & { seq: number };

/** The runs of one data folder. Every change of state survives a power failure before it is told to anybody. */
export class RunStore {
  readonly #db: StudioDb;

  constructor(db: StudioDb) {
    this.#db = db;
  }

  create(run: Pick<RunRow, 'id' | 'name' | 'group' | 'reason'> & { config: ExperimentConfig }): Promise<RunRow> {
    const config = run.config as unknown as Prisma.InputJsonObject;
    return this.#db.write('full', (prisma) =>
      prisma.run.create({ data: { ...run, config, state: 'queued', createdAt: new Date() } }),
    );
  }

  find(id: string): Promise<RunRow | null> {
    return this.#db.prisma.run.findUnique({ where: { id } });
  }

  /** Throws `not-found`. */
  async get(id: string): Promise<RunRow> {
    const row = await this.find(id);
    if (!row) throw new StudioError('not-found', `There is no run ${id}.`);
    return row;
  }

  async list(limit: number, offset: number): Promise<{ rows: RunRow[]; total: number }> {
    const [rows, total] = await Promise.all([
      this.#db.prisma.run.findMany({ orderBy: { id: 'desc' }, take: limit, skip: offset }),
      this.#db.prisma.run.count(),
    ]);
    return { rows, total };
  }

  /** Runs of this name from before the run `id`, newest first. */
  earlierRuns(name: string, id: string): Promise<RunRow[]> {
    return this.#db.prisma.run.findMany({ where: { name, id: { lt: id } }, orderBy: { id: 'desc' }, take: 1000 });
  }

  count(states: readonly RunState[]): Promise<number> {
    return this.#db.prisma.run.count({ where: { state: { in: [...states] } } });
  }

  /** Oldest first. */
  inStates(states: readonly RunState[]): Promise<RunRow[]> {
    return this.#db.prisma.run.findMany({ where: { state: { in: [...states] } }, orderBy: { id: 'asc' } });
  }

  /** Changes a run that is in one of the states `from`; otherwise changes nothing and returns false. */
  async change(id: string, from: readonly RunState[], data: Prisma.RunUpdateManyMutationInput): Promise<boolean> {
    const where = { id, state: { in: [...from] } };
    const { count } = await this.#db.write('full', (prisma) => prisma.run.updateMany({ where, data }));
    return count === 1;
  }

  /** A queued run's reason, which may change often and matters to nobody after a power failure. */
  async explain(id: string, reason: string): Promise<void> {
    await this.#db.write('normal', (prisma) =>
      prisma.run.updateMany({ where: { id, state: 'queued' }, data: { reason } }),
    );
  }

  /** With its events and checkpoint rows. */
  async delete(id: string): Promise<void> {
    await this.#db.write('full', (prisma) => prisma.run.deleteMany({ where: { id } }));
  }

  checkpoints(runId: string): Promise<CheckpointRow[]> {
    return this.#db.prisma.checkpoint.findMany({ where: { runId }, orderBy: [{ step: 'asc' }, { name: 'asc' }] });
  }

  findCheckpoint(runId: string, name: string): Promise<CheckpointRow | null> {
    return this.#db.prisma.checkpoint.findUnique({ where: { runId_name: { runId, name } } });
  }

  async addCheckpoint(row: Omit<CheckpointRow, 'createdAt'>): Promise<void> {
    const { runId, name } = row;
    const data = { ...row, createdAt: new Date() };
    await this.#db.write('full', (prisma) =>
      prisma.checkpoint.upsert({ where: { runId_name: { runId, name } }, create: data, update: data }),
    );
  }

  /** Forgets checkpoints that are no longer on disk. */
  async removeCheckpoints(runId: string, names: readonly string[]): Promise<void> {
    if (names.length === 0) return;
    const where = { runId, name: { in: [...names] } };
    await this.#db.write('full', (prisma) => prisma.checkpoint.deleteMany({ where }));
  }

  /** Up to `limit` events after number `after`, in order. Throws `not-found`. */
  async events(runId: string, after: number, limit: number): Promise<{ events: NumberedEvent[]; lastSeq: number }> {
    const { lastSeq } = await this.get(runId);
    const events: NumberedEvent[] = [];
    for await (const event of this.eventsAfter(runId, after)) {
      if (event.seq > lastSeq || events.length === limit) break;
      events.push(event);
    }
    return { events, lastSeq };
  }

  /** The events of a run's last chunks, in order: its end and what was said just before it. */
  async lastEvents(runId: string): Promise<RunEvent[]> {
    const chunks = await this.#db.prisma.eventChunk.findMany({
      where: { runId },
      orderBy: { firstSeq: 'desc' },
      take: LAST_CHUNKS,
    });
    return chunks.reverse().flatMap(({ bytes }) => [...decodeChunk(bytes)]);
  }

  /** All events after number `after`, in order, a chunk in memory at a time. */
  async *eventsAfter(runId: string, after: number): AsyncGenerator<NumberedEvent> {
    for (let seen = after; ; ) {
      const chunk = await this.#db.prisma.eventChunk.findFirst({
        where: { runId, lastSeq: { gt: seen } },
        orderBy: { firstSeq: 'asc' },
      });
      if (!chunk) return;
      let seq = chunk.firstSeq - 1;
      for (const event of decodeChunk(chunk.bytes)) {
        seq++;
        if (seq > seen) yield { seq, ...event };
      }
      seen = seq;
    }
  }
}

/**
 * The config of a row; rows of an older build get today's defaults for what they lack. Throws `invalid-config` where that
 * build took what this one refuses.
 */
export function configOf(row: RunRow): ExperimentConfig {
  const parsed = ExperimentConfig.safeParse(shownConfig(row));
  if (parsed.success) return parsed.data;
  const why = parsed.error.issues.map(({ path, message }) => `${path.join('.')}: ${message}`).join('; ');
  throw new StudioError('invalid-config', `Run ${row.id} was stored with a config that is refused today: ${why}`);
}

/** As it was stored, but for a name that an older build took: no list, page or terminal gets control characters from it. */
function shownConfig({ config }: RunRow): RunRow['config'] {
  const stored = config as { name?: unknown };
  return typeof stored.name === 'string' ? { ...stored, name: shownName(stored.name) } : config;
}

function shownName(name: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is replaced
  return name.replaceAll(/[\u0000-\u001f\u007f-\u009f]/g, '?');
}

/** A run as lists show it. */
export function toSummary(row: RunRow): RunSummary {
  // As it was stored: parsing ten thousand of them would hold up everybody else.
  const config = row.config as unknown as ExperimentConfig;
  const adapters = row.adapters as Run['adapters'] | null;
  return {
    id: row.id,
    name: shownName(row.name),
    state: row.state as RunState,
    reason: row.reason,
    createdAt: row.createdAt.toISOString(),
    startedAt: row.startedAt?.toISOString() ?? null,
    endedAt: row.endedAt?.toISOString() ?? null,
    group: row.group,
    strategy: fullStrategyWords(config.strategy),
    devices: config.devices,
    adapter: adapters ? [...new Set(adapters.map(({ name }) => name))].join(', ') : config.adapter,
    steps: config.trainer.steps,
    stepsDone: row.stepsDone,
    lastSeq: row.lastSeq,
    lossMean: row.lossMean === null ? null : toWireNumber(row.lossMean),
    iterationMs: row.iterationMs,
    peakBytes: row.peakBytes === null ? null : Number(row.peakBytes),
  };
}

/** The run whose checkpoint a run goes on from, or whose weights it starts with, as the path says; null for any other. */
function parentOf({ config, latest }: RunRow): string | null {
  const { checkpoint, init } = config as unknown as ExperimentConfig;
  const id = /^runs\/([^/]+)\/checkpoints\//.exec(latest ?? checkpoint.resume ?? init.from ?? '')?.[1];
  return id !== undefined && RUN_ID.test(id) ? id : null;
}

/** A run with all that its page shows but its events. Paths are relative to the data folder. */
export function toRun(row: RunRow, checkpoints: readonly CheckpointRow[]): Run {
  return {
    ...toSummary(row),
    config: shownConfig(row),
    parent: parentOf(row),
    error: row.error as Run['error'],
    adapters: (row.adapters as Run['adapters'] | null) ?? [],
    params: row.params === null ? null : Number(row.params),
    predicted: row.predicted as Run['predicted'],
    checkpoints: checkpoints.map(({ runId, name, format, step, sha256, bytes }) => ({
      name,
      path: `runs/${runId}/checkpoints/${name}`,
      format,
      step,
      sha256,
      bytes: Number(bytes),
    })),
  };
}

/** The split of the fullest moment. */
export function byCategoryOf(row: RunRow): BytesByCategory | null {
  return row.byCategory as BytesByCategory | null;
}

function toWireNumber(word: string): WireNumber {
  const value = Number(word);
  return Number.isFinite(value) ? value : (word as WireNumber);
}
