import { mkdir, readdir, rename, rm, writeFile } from 'node:fs/promises';
import { basename, join, relative, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Logger } from 'pino';
import type { ExperimentConfig } from '../../engine/config.ts';
import { StudioError } from '../../engine/errors.ts';
import type { EndEvent, RunError, RunEvent } from '../../engine/trainer/events.ts';
import type { RunState } from '../contract.ts';
import type { DataFolder } from '../data-folder.ts';
import type { StudioDb } from '../db/client.ts';
import { isFull } from '../db/retry.ts';
import { checkpointBytes } from '../runs/checkpoint-files.ts';
import { withAbsolutePaths } from '../runs/config-paths.ts';
import { RunJournal } from '../runs/journal.ts';
import { LATEST, withLatestCheckpoint } from '../runs/latest-checkpoint.ts';
import { newRunId, RUN_ID } from '../runs/run-id.ts';
import { configOf, type RunRow, type RunStore } from '../runs/run-store.ts';
import { RunTotals } from '../runs/run-totals.ts';
import { type LaunchedRun, type LaunchOptions, launchRun } from '../workers/supervisor.ts';
import { endOrphans, recoverCheckpoints } from './recover.ts';
import { blockedBy, INTERPRETER, type Placement, placeRun, type SlotAdapter } from './slots.ts';
import { ACTIVE_STATES, isFinal, nextState, statesBefore } from './state-machine.ts';

const FINISH_RETRY_MS = 5000;
const PUMP_MS = 3000;
const DELETED = '.deleted-';

export interface SchedulerOptions {
  readonly db: StudioDb;
  readonly store: RunStore;
  readonly folder: DataFolder;
  readonly adapters: () => Promise<readonly SlotAdapter[]>;
  /** Told when there is something new about a run: a state, or events up to `lastSeq`. */
  readonly onNews: (runId: string, lastSeq: number) => void;
  readonly log: Logger;
  /** The worker program and its time limits; tests give their own. */
  readonly workers?: Pick<LaunchOptions, 'entry' | 'patience'>;
}

interface ActiveRun {
  readonly placement: Placement;
  readonly launched: LaunchedRun;
  readonly journal: RunJournal;
  /** Settles after the end is stored. */
  ended: Promise<void>;
  broken: StudioError | null;
  /** Why it was asked to stop. */
  stopReason: string;
}

/**
 * Starts queued runs, oldest first, when all adapters they need are free, and answers for them until their end is
 * stored. The database says what is true; this object holds only what runs now.
 */
export class Scheduler {
  readonly #options: SchedulerOptions;
  readonly #active = new Map<string, ActiveRun>();
  /** Slot → the run that has it. */
  readonly #held = new Map<string, string>();
  #closing = false;
  #pumping: Promise<void> | null = null;
  #pumpAgain = false;

  constructor(options: SchedulerOptions) {
    this.#options = options;
  }

  /**
   * Makes the states of an earlier server true, ends what it left running, then starts what is queued. Throws `io` where the
   * disk is too full to store that.
   */
  async start(): Promise<void> {
    const { root } = this.#options.folder;
    try {
      await this.#takeOver();
    } catch (cause) {
      if (!isFull(cause)) throw cause;
      const message = `The disk of the data folder ${root} is full, so how the runs of an earlier server ended cannot be stored. Make room on it and start again.`;
      throw new StudioError('io', message, { folder: root }, { cause });
    }
    this.#pump();
  }

  async #takeOver(): Promise<void> {
    const { store, folder, log } = this.#options;
    await this.#finishDeletions();
    for (const row of await store.inStates(ACTIVE_STATES)) {
      const runFolder = join(folder.runs, row.id);
      const orphans = await endOrphans(runFolder);
      await recoverCheckpoints(store, row.id, runFolder);
      const message = 'The server stopped while it ran.';
      log.warn({ runId: row.id, orphans }, 'a run of an earlier server is failed');
      await this.#storeEnd(row, failed({ code: 'worker-died', message, rank: null, step: null }), message);
    }
  }

  /**
   * Queues a run. `config` is whole, its paths relative to the data folder and looked at by the caller. Throws
   * `invalid-config` for `resume: latest` where no earlier run of its name has a checkpoint or may still make one.
   */
  async submit(config: ExperimentConfig, group: string | null): Promise<RunRow> {
    const id = newRunId();
    await this.#refuseNoLatest(config, id);
    const runFolder = join(this.#options.folder.runs, id);
    let row: RunRow;
    try {
      await mkdir(runFolder, { mode: 0o700 });
      await writeFile(join(runFolder, 'run.json'), `${JSON.stringify({ id, group, config }, null, 2)}\n`);
      row = await this.#options.store.create({ id, name: config.name, group, config, reason: 'Waits for its turn.' });
    } catch (error) {
      await rm(runFolder, { recursive: true, force: true });
      throw error;
    }
    this.#options.onNews(id, 0);
    this.#pump();
    return row;
  }

  /** Asks a run to stop. Throws `not-found`, or `conflict` when it has ended. */
  async stop(id: string, reason = 'Stopped by request.'): Promise<void> {
    const { store, onNews } = this.#options;
    const row = await store.get(id);
    const state = row.state as RunState;
    if (isFinal(state)) throw new StudioError('conflict', `The run has ended already: it is ${state}.`);
    if (state === 'queued' && (await store.change(id, ['queued'], { state: 'stopped', reason, endedAt: new Date() }))) {
      await this.#storeEnd(row, stoppedBeforeStart(), reason);
      this.#pump();
      return;
    }
    if (await store.change(id, ['starting', 'running'], { state: 'stopping', reason: 'Ends after its step.' }))
      onNews(id, row.lastSeq);
    const active = this.#active.get(id);
    if (!active) return;
    active.stopReason = state === 'starting' ? `${reason.replace(/\.$/, '')} before its first step.` : reason;
    active.launched.stop();
  }

  /** Asks a run that trains for a checkpoint. Throws `not-found`, or `conflict` when it does not train. */
  async save(id: string): Promise<void> {
    const row = await this.#options.store.get(id);
    const active = this.#active.get(id);
    if (!active || row.state !== 'running')
      throw new StudioError('conflict', `Only a run that trains can save: this one is ${row.state}.`);
    active.launched.save();
  }

  /** Asks a run for a trace of its next step. Throws `not-found`, or `conflict` when it has no step to come. */
  async trace(id: string): Promise<void> {
    const row = await this.#options.store.get(id);
    const active = this.#active.get(id);
    if (!active || (row.state !== 'running' && row.state !== 'starting'))
      throw new StudioError('conflict', `A step can be traced while a run trains: this one is ${row.state}.`);
    active.launched.trace();
  }

  /** Deletes a run that has ended, with its files. Throws `not-found`, or `conflict` while it is not over. */
  async remove(id: string): Promise<void> {
    const { store, folder, onNews } = this.#options;
    const row = await store.get(id);
    if (!isFinal(row.state as RunState) || this.#active.has(id))
      throw new StudioError('conflict', `The run is ${row.state}. Stop it before you delete it.`);
    // First out of the way by one rename, so that a half-deleted run is never listed.
    await rename(join(folder.runs, id), join(folder.runs, DELETED + id)).catch(ignoreMissing);
    const removeFiles = () => rm(join(folder.runs, DELETED + id), { recursive: true, force: true });
    try {
      await store.delete(id);
    } catch (error) {
      if (!isFull(error)) {
        await rename(join(folder.runs, DELETED + id), join(folder.runs, id)).catch(ignoreMissing);
        throw error;
      }
      // What a person deletes a run for: its files are most of it, and without them the database has room to forget it.
      await removeFiles();
      await store.delete(id);
    }
    await removeFiles();
    onNews(id, row.lastSeq);
  }

  /** Slot → id of the run that uses it now. */
  get held(): ReadonlyMap<string, string> {
    return this.#held;
  }

  /** Stops all runs, saving as configured, and waits for their ends to be stored. Queued runs stay queued. */
  async close(): Promise<void> {
    this.#closing = true;
    // A driver may take long to list its adapters; a run that is not yet started then stays queued.
    await Promise.race([this.#pumping, sleep(PUMP_MS, undefined, { ref: false })]);
    await Promise.all(
      [...this.#active].map(async ([id, active]) => {
        active.launched.save();
        await this.stop(id, 'The studio was shut down.').catch(() => active.launched.stop());
        await active.ended;
      }),
    );
  }

  /** Ends all workers at once: the second Ctrl-C. */
  kill(): void {
    for (const { launched } of this.#active.values()) launched.kill();
  }

  /** Looks through the queue; calls during a look make it look once more. */
  #pump(): void {
    if (this.#closing) return;
    if (this.#pumping) {
      this.#pumpAgain = true;
      return;
    }
    this.#pumping = this.#startWhatCan()
      .catch((error: unknown) => this.#options.log.error({ error }, 'the queue could not be looked through'))
      .finally(() => {
        this.#pumping = null;
        const again = this.#pumpAgain;
        this.#pumpAgain = false;
        if (again) this.#pump();
      });
  }

  async #startWhatCan(): Promise<void> {
    const { store } = this.#options;
    // A run that waits keeps its slots from those behind it, or it might wait for ever.
    const claimed = new Map(this.#held);
    for (const row of await store.inStates(['queued'])) {
      if (this.#closing) return;
      let config: ExperimentConfig;
      let placement: Placement;
      try {
        config = configOf(row);
        placement = placeRun(config, config.adapter === INTERPRETER ? [] : await this.#options.adapters());
      } catch (error) {
        await this.#storeEnd(row, failed(toRunError(error, 'no-adapter')));
        continue;
      }
      const blocked = blockedBy(placement, claimed);
      for (const slot of placement.slots) if (!claimed.has(slot)) claimed.set(slot, row.id);
      if (this.#closing) return;
      if (blocked) await this.#explain(row, blocked);
      else await this.#begin(row, config, placement);
    }
  }

  async #explain(row: RunRow, { slot, runId }: { slot: string; runId: string }): Promise<void> {
    const { store, adapters, onNews } = this.#options;
    const entries = slot === INTERPRETER ? [] : await adapters();
    const adapter = entries.find(({ id }) => id === slot)?.name ?? `the ${slot}`;
    const other = (await store.find(runId))?.name ?? runId;
    const verb = this.#held.get(slot) === runId ? 'used by' : 'for which it stands behind';
    const reason = `Waits for ${adapter}, ${verb} run "${other}".`;
    if (reason === row.reason) return;
    await store.explain(row.id, reason);
    onNews(row.id, row.lastSeq);
  }

  /** `latest`: of the newest of the earlier runs of the same name that has one. */
  async #withLatest(config: ExperimentConfig, earlier: readonly RunRow[]): Promise<ExperimentConfig> {
    const folders = earlier.map(({ id }) => join(this.#options.folder.runs, id));
    return withLatestCheckpoint(config, folders, `of an earlier run called ${config.name}`);
  }

  /** A run before it that is not over may still make the checkpoint. */
  async #refuseNoLatest(config: ExperimentConfig, id: string): Promise<void> {
    if (config.checkpoint.resume !== LATEST) return;
    const earlier = await this.#options.store.earlierRuns(config.name, id);
    if (earlier.some(({ state }) => !isFinal(state as RunState))) return;
    try {
      await this.#withLatest(config, earlier);
    } catch (error) {
      if (!(error instanceof StudioError && error.code === 'not-found')) throw error;
      const problem = { path: 'checkpoint.resume', message: error.message.replace(/^checkpoint\.resume: /, '') };
      throw new StudioError('invalid-config', error.message, { problems: [{ ...problem, code: 'invalid-config' }] });
    }
  }

  async #begin(row: RunRow, written: ExperimentConfig, placement: Placement): Promise<void> {
    const { store, folder, db, onNews, workers } = this.#options;
    const { id } = row;
    let config: ExperimentConfig;
    let latest: string | null = null;
    try {
      const earlier = written.checkpoint.resume === LATEST ? await store.earlierRuns(row.name, id) : [];
      const found = await this.#withLatest(written, earlier);
      if (found !== written) latest = relative(folder.root, found.checkpoint.resume ?? '');
      config = withAbsolutePaths(found, (path) => resolve(folder.root, path));
    } catch (error) {
      await this.#storeEnd(row, failed(toRunError(error, 'not-found')));
      return;
    }
    const change = { state: 'starting', reason: 'Its workers are being started.', startedAt: new Date(), latest };
    if (!(await store.change(id, statesBefore('place'), change))) return;
    if (this.#closing) {
      await store.change(id, ['starting'], { state: 'queued', reason: row.reason, startedAt: null, latest: null });
      return;
    }
    for (const slot of placement.slots) this.#held.set(slot, id);
    onNews(id, row.lastSeq);
    const journal = new RunJournal({
      db,
      runId: id,
      lastSeq: row.lastSeq,
      totals: new RunTotals(config.devices),
      onStored: (lastSeq) => onNews(id, lastSeq),
      onBroken: (error) => {
        active.broken = error;
        active.launched.stop();
      },
    });
    const writes = new Set<Promise<void>>();
    const launched = launchRun({
      ...workers,
      config,
      runFolder: join(folder.runs, id),
      corpusFolder: folder.corpora,
      adapterIds: placement.adapterIds,
      recordTouches: false,
      weightsFile: null,
      onEvent: (event) => {
        const told = this.#relative(id, event);
        journal.append(told);
        const write = this.#note(id, told);
        if (!write) return;
        writes.add(write);
        void write.finally(() => writes.delete(write));
      },
    });
    const active: ActiveRun = {
      placement,
      launched,
      journal,
      ended: Promise.resolve(),
      broken: null,
      stopReason: 'Stopped by request.',
    };
    this.#active.set(id, active);
    active.ended = launched.done.then(async (end) => {
      await Promise.all(writes);
      await this.#ended(row, active, end);
    });
  }

  /** What an event changes besides the journal, or null. Never rejects. */
  #note(id: string, event: RunEvent): Promise<void> | null {
    const { store, onNews, log, folder } = this.#options;
    const noted =
      event.event === 'start'
        ? store.change(id, statesBefore('begin'), { state: 'running', reason: 'Trains.' })
        : event.event === 'checkpoint'
          ? checkpointBytes(join(folder.root, event.path)).then(async (bytes) => {
              const { path, format, step, sha256, removed = [] } = event;
              await store.addCheckpoint({
                runId: id,
                name: basename(path),
                format,
                step,
                sha256,
                bytes: BigInt(bytes),
              });
              await store.removeCheckpoints(
                id,
                removed.map((old) => basename(old)),
              );
            })
          : null;
    return (
      noted?.then(
        () => onNews(id, 0),
        (error: unknown) => log.error({ error, runId: id, event: event.event }, 'an event could not be noted'),
      ) ?? null
    );
  }

  async #ended(row: RunRow, active: ActiveRun, workersEnd: EndEvent): Promise<void> {
    const { log } = this.#options;
    const told = this.#relative(row.id, workersEnd) as EndEvent;
    const end = active.broken
      ? { ...told, ...failed(toRunError(active.broken, 'io')), checkpoints: told.checkpoints }
      : told;
    for (;;) {
      try {
        await this.#storeEnd(row, end, end.status === 'stopped' ? active.stopReason : undefined, active.journal);
        break;
      } catch (error) {
        // The disk is full, say. Until it can be stored the run is over but cannot be said to be.
        log.error({ error, runId: row.id }, 'the end of a run could not be stored; trying again');
        if (this.#closing) break;
        await sleep(FINISH_RETRY_MS);
      }
    }
    this.#active.delete(row.id);
    for (const slot of active.placement.slots) this.#held.delete(slot);
    this.#pump();
  }

  /** Stores a run's end: its last event and its final state, together. */
  async #storeEnd(row: RunRow, end: EndEvent, reason?: string, journal?: RunJournal): Promise<void> {
    const { db, onNews } = this.#options;
    const happening = ({ finished: 'finish', stopped: 'stop', failed: 'fail' } as const)[end.status];
    const state = nextState('stopping', happening) as RunState;
    const writer =
      journal ??
      new RunJournal({
        db,
        runId: row.id,
        lastSeq: row.lastSeq,
        totals: null,
        onStored: (lastSeq) => onNews(row.id, lastSeq),
        onBroken: () => undefined,
      });
    const why = reason ?? (end.status === 'finished' ? 'All steps are done.' : (end.error?.message ?? ''));
    await writer.finish(end, {
      state,
      reason: why.split('\n')[0].slice(0, 500),
      endedAt: new Date(),
      ...(end.error ? { error: end.error } : {}),
    });
  }

  /** An event as it may be told over HTTP: paths and messages relative to the data folder. */
  #relative(id: string, event: RunEvent): RunEvent {
    const { folder } = this.#options;
    const record = <T extends { path: string }>(checkpoint: T): T => ({
      ...checkpoint,
      path: relative(folder.root, resolve(folder.runs, id, checkpoint.path)),
    });
    const text = (message: string) => message.replaceAll(`${folder.root}/`, '');
    if (event.event === 'checkpoint') {
      const { removed } = event;
      const told = record(event);
      return removed ? { ...told, removed: removed.map((path) => record({ path }).path) } : told;
    }
    if (event.event === 'log') return { ...event, line: text(event.line) };
    if (event.event === 'end') {
      const error = event.error ? { error: { ...event.error, message: text(event.error.message) } } : {};
      return { ...event, ...error, checkpoints: event.checkpoints.map(record) };
    }
    return event;
  }

  /** Deletions that an earlier server had begun. */
  async #finishDeletions(): Promise<void> {
    const { store, folder } = this.#options;
    for (const name of await readdir(folder.runs)) {
      const id = name.startsWith(DELETED) ? name.slice(DELETED.length) : '';
      if (!RUN_ID.test(id)) continue;
      await store.delete(id);
      await rm(join(folder.runs, name), { recursive: true, force: true });
    }
  }
}

function failed(error: RunError): EndEvent {
  return { event: 'end', status: 'failed', checkpoints: [], peakBytesByRank: [], error };
}

function stoppedBeforeStart(): EndEvent {
  return { event: 'end', status: 'stopped', checkpoints: [], peakBytesByRank: [] };
}

function toRunError(error: unknown, code: string): RunError {
  const known = error instanceof StudioError;
  return { code: known ? error.code : code, message: (error as Error).message, rank: null, step: null };
}

function ignoreMissing(error: NodeJS.ErrnoException): void {
  if (error.code !== 'ENOENT') throw error;
}
