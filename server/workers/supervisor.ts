import { mkdir, stat } from 'node:fs/promises';
import { join, resolve, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { ExperimentConfig } from '../../engine/config.ts';
import { counted } from '../../engine/counted.ts';
import { processStartTime } from '../../engine/node/liveness.ts';
import type { FromWorker } from '../../engine/node/worker-protocol.ts';
import type { CheckpointRecord, EndEvent, RunError, RunEvent } from '../../engine/trainer/events.ts';
import { runEnvironment } from './environment.ts';
import { makeSharedFolder, nameSharedFolder, removeSharedFolder, removeTraces, writeTraces } from './run-folder.ts';
import { type Exit, WorkerProcess } from './worker-process.ts';

/** The time that each stage of a worker's life may take. */
export interface Patience {
  /** From the fork to the first heartbeat: the program is compiled in it. */
  readonly firstHeartbeatMs: number;
  /** Between two heartbeats. */
  readonly heartbeatMs: number;
  /** From a stop to SIGTERM, or longer where steps take long: the steps under way are finished and a checkpoint written. */
  readonly stopMs: number;
  /** The same for the ranks that are left when one died: there is nothing to save. */
  readonly peerMs: number;
  /** From SIGTERM to SIGKILL, and from the last message to the exit. */
  readonly killMs: number;
  /** How much longer a stop waits while a rank writes a checkpoint. */
  readonly saveMs: number;
}

export const PATIENCE: Patience = {
  firstHeartbeatMs: 60_000,
  heartbeatMs: 20_000,
  stopMs: 15_000,
  peerMs: 3000,
  killMs: 5000,
  saveMs: 600_000,
};

export interface LaunchOptions {
  readonly config: ExperimentConfig;
  /** Absolute, and there. Gets logs/ and what the workers write. */
  readonly runFolder: string;
  readonly corpusFolder: string;
  /** One adapter id per rank; `['interpreter']` runs all ranks in one process. */
  readonly adapterIds: readonly string[];
  readonly recordTouches: boolean;
  readonly weightsFile: string | null;
  /** As in WorkerStart. */
  readonly trace?: { readonly step: number | null };
  /** What the ranks report, in order of arrival; not the end, which `done` gives. */
  readonly onEvent: (event: RunEvent) => void;
  /** The program of a worker; tests give their own. */
  readonly entry?: string;
  readonly patience?: Partial<Patience>;
}

export interface LaunchedRun {
  /** Asks the ranks to save after their step, and to go on. */
  save(): void;
  /** Asks the ranks to trace a step; each writes its part into the run's folder. */
  trace(): void;
  /** Asks the ranks to end after their step, saving as configured; forces them when they do not, and at once before there is a step. */
  stop(): void;
  /** Ends all ranks now. */
  kill(): void;
  /** The end, after every process is reaped and the shared memory removed. Never rejects. */
  readonly done: Promise<EndEvent>;
}

/** How often it is looked whether the run's folder is still there. */
const FOLDER_MS = 500;
/** How many events wait at most for the start event. */
const MAX_HELD = 10_000;
/** A stop waits this many times the longest step of late: two may be under way. */
const STEPS_OF_A_STOP = 3;
/** Steps of each rank that are of late. */
const RECENT_STEPS = 8;
/** A WorkerPhase: a checkpoint is copied, or written with nothing else to do. */
const SAVING = 'saving';
const WORKER = fileURLToPath(new URL('../../engine/node/worker.ts', import.meta.url));

interface Rank {
  readonly ranks: readonly number[];
  readonly process: WorkerProcess;
  result: Extract<FromWorker, { type: 'done' }> | null;
  exit: Exit | null;
  heartbeats: number;
  heardAtMs: number;
  /** What it last said that it does. */
  phase: string;
  /** Said itself that it failed. */
  failed: boolean;
  /** We sent a signal, so its death says nothing about the cause. */
  signalled: boolean;
  /** Nothing that it still says counts: it broke the protocol or gave no sign of life. */
  muted: boolean;
}

/**
 * Starts the workers of a run and answers for them until the last is reaped. When one fails or dies the others are
 * stopped, and the end names the one that was first to fail by itself: a peer's `peer-lost` is only an echo.
 */
export function launchRun(options: LaunchOptions): LaunchedRun {
  const run = new Supervision(options);
  const done = run.run();
  return { save: () => run.save(), trace: () => run.trace(), stop: () => run.stop(), kill: () => run.kill(), done };
}

class Supervision {
  readonly #options: LaunchOptions;
  readonly #patience: Patience;
  readonly #workers: Rank[] = [];
  readonly #errors: { error: RunError; echo: boolean }[] = [];
  #checkpoints: CheckpointRecord[] = [];
  readonly #peakBytes: number[];
  readonly #steps = new Map<number, number>();
  #firstStep: number | null = null;
  readonly #recentStepMs: number[] = [];
  readonly #timers = new Set<NodeJS.Timeout>();
  #allEnded!: () => void;
  #stopping: 'no' | 'asked' | 'failed' = 'no';
  #started = false;
  /** Events that wait for the start event; null once it came. */
  #held: RunEvent[] | null = [];

  constructor(options: LaunchOptions) {
    this.#options = options;
    this.#patience = { ...PATIENCE, ...options.patience };
    this.#peakBytes = new Array<number>(options.config.devices).fill(0);
  }

  async run(): Promise<EndEvent> {
    const { runFolder } = this.#options;
    const sharedFolder = await nameSharedFolder();
    try {
      await mkdir(join(runFolder, 'logs'), { recursive: true });
      // Written down before it is made, so that nothing is left that nobody knows of.
      await writeTraces(runFolder, { sharedFolder, workers: [] });
      await makeSharedFolder(sharedFolder);
      if (this.#stopping === 'no') await this.#runWorkers(sharedFolder);
    } catch (error) {
      this.#fail({
        code: 'io',
        message: `The run could not be started: ${(error as Error).message}`,
        rank: null,
        step: null,
      });
      this.kill();
    } finally {
      for (const timer of this.#timers) clearTimeout(timer);
      await removeSharedFolder(sharedFolder).catch(() => undefined);
      await removeTraces(runFolder).catch(() => undefined);
    }
    return this.#end();
  }

  /** One rank is told, and the others hear it from that one with the report of its step. */
  save(): void {
    this.#workers[0]?.process.send({ type: 'save' });
  }

  trace(): void {
    this.#workers[0]?.process.send({ type: 'trace' });
  }

  stop(): void {
    if (this.#stopping !== 'no') return;
    this.#stopping = 'asked';
    // Nothing is trained yet, so there is nothing to save and nothing to wait for.
    if (this.#firstStep === null) {
      this.#options.onEvent({ event: 'log', rank: null, line: 'Stopped by request before its first step.' });
      for (const worker of this.#workers) this.#signal(worker, 'SIGKILL');
    } else {
      this.#wind(Math.max(this.#patience.stopMs, STEPS_OF_A_STOP * Math.max(0, ...this.#recentStepMs)));
    }
  }

  kill(): void {
    if (this.#stopping === 'no') this.#stopping = 'asked';
    for (const worker of this.#workers) this.#signal(worker, 'SIGKILL');
  }

  async #runWorkers(sharedFolder: string): Promise<void> {
    const { config, adapterIds, runFolder, corpusFolder, recordTouches, weightsFile, trace } = this.#options;
    const world = config.devices;
    const all = Array.from({ length: world }, (_, rank) => rank);
    const split = adapterIds[0] === 'interpreter' ? [all] : all.map((rank) => [rank]);
    const ended = new Promise<void>((resolve) => {
      this.#allEnded = resolve;
    });
    for (const [index, ranks] of split.entries()) {
      this.#spawn(index, {
        type: 'start',
        ranks,
        world,
        config,
        adapterId: adapterIds[index],
        sharedFolder,
        corpusFolder,
        runFolder,
        recordTouches,
        weightsFile,
        trace,
      });
    }
    this.#started = true;
    const workers = this.#workers.flatMap(({ process: { pid } }) => {
      const startTime = pid === undefined ? null : processStartTime(pid);
      return startTime === null ? [] : [{ pid: pid as number, startTime }];
    });
    const watch = this.#watchHeartbeats();
    const folderWatch = await this.#watchFolder();
    try {
      await writeTraces(runFolder, { sharedFolder, workers });
      this.#settle();
      await ended;
    } catch (error) {
      this.kill();
      this.#settle();
      await ended;
      throw error;
    } finally {
      clearInterval(watch);
      clearInterval(folderWatch);
    }
  }

  #spawn(index: number, start: Extract<Parameters<WorkerProcess['send']>[0], { type: 'start' }>): void {
    const { runFolder, entry = WORKER } = this.#options;
    const worker: Rank = {
      ranks: start.ranks,
      result: null,
      exit: null,
      heartbeats: 0,
      heardAtMs: performance.now(),
      phase: 'starting',
      failed: false,
      signalled: false,
      muted: false,
      process: new WorkerProcess({
        entry,
        // Only a GPU has a PCI id.
        env: runEnvironment(this.#options.config.devices, start.adapterId.includes(':')),
        logFile: join(runFolder, 'logs', `worker-${index}.log`),
        start,
        onMessage: (message) => this.#hear(worker, message),
        onNonsense: (why) => this.#refuse(worker, why),
        onExit: (exit) => this.#exited(worker, exit),
      }),
    };
    this.#workers.push(worker);
  }

  #hear(worker: Rank, message: FromWorker): void {
    if (worker.muted) return;
    if (message.type === 'heartbeat') {
      worker.heartbeats++;
      worker.heardAtMs = performance.now();
      worker.phase = message.phase;
    } else if (message.type === 'event') {
      this.#take(worker, message.event);
    } else {
      if (message.type === 'done') {
        worker.result = message;
        for (const { rank, peakBytes } of message.ranks) this.#peak(rank, peakBytes);
      } else {
        worker.failed = true;
        this.#fail(message.error, message.error.code === 'peer-lost');
        this.#stopOthers();
      }
      this.#after(this.#patience.killMs, () => this.#signal(worker, 'SIGKILL'));
    }
  }

  #take(worker: Rank, event: RunEvent): void {
    const foreign = 'rank' in event && event.rank !== null && !worker.ranks.includes(event.rank);
    if (foreign || event.event === 'end') {
      this.#refuse(
        worker,
        event.event === 'end' ? 'it reported the end of the run' : 'it reported for a rank that it does not run',
      );
      return;
    }
    if (event.event === 'step') {
      this.#peak(event.rank, event.memory.peakBytes);
      this.#steps.set(event.rank, event.step);
      this.#firstStep ??= event.step;
      this.#recentStepMs.push(event.iterationMs);
      if (this.#recentStepMs.length > RECENT_STEPS * this.#options.config.devices) this.#recentStepMs.shift();
    }
    if (event.event === 'checkpoint') {
      const { event: _, removed = [], ...record } = event;
      if (!this.#isInside(record.path)) {
        this.#refuse(worker, 'it reported a checkpoint outside its run');
        return;
      }
      this.#checkpoints = [...this.#checkpoints.filter(({ path }) => !removed.includes(path)), record];
    }
    this.#pass(event);
  }

  /** Rank 0 says what the run is; what a quicker rank measured comes after that. */
  #pass(event: RunEvent): void {
    if (this.#held === null || event.event === 'log') {
      this.#options.onEvent(event);
    } else if (event.event === 'start' || this.#held.length === MAX_HELD) {
      const held = this.#held;
      this.#held = null;
      for (const each of event.event === 'start' ? [event, ...held] : [...held, event]) this.#options.onEvent(each);
    } else {
      this.#held.push(event);
    }
  }

  #isInside(path: string): boolean {
    const folder = resolve(this.#options.runFolder, 'checkpoints') + sep;
    return resolve(this.#options.runFolder, path).startsWith(folder);
  }

  #peak(rank: number, bytes: number): void {
    if (rank in this.#peakBytes) this.#peakBytes[rank] = Math.max(this.#peakBytes[rank], bytes);
  }

  /** A worker that does not keep the protocol is not asked to stop. */
  #refuse(worker: Rank, why: string): void {
    if (worker.muted || worker.exit) return;
    worker.muted = true;
    this.#fail({
      code: 'internal',
      message: `Worker of ${name(worker)} broke the protocol: ${why}`,
      ...this.#place(worker),
    });
    this.#signal(worker, 'SIGKILL');
    this.#stopOthers();
  }

  #exited(worker: Rank, exit: Exit): void {
    worker.exit = exit;
    const explained = worker.result !== null || worker.failed || worker.muted || worker.signalled;
    if (!explained) {
      this.#fail({ code: 'worker-died', message: obituary(worker, exit), ...this.#place(worker) });
      this.#stopOthers();
    }
    this.#settle();
  }

  #settle(): void {
    if (this.#started && this.#workers.every(({ exit }) => exit !== null)) this.#allEnded();
  }

  #place(worker: Rank): { rank: number | null; step: number | null } {
    const rank = worker.ranks.length === 1 ? worker.ranks[0] : null;
    return { rank, step: this.#steps.get(worker.ranks[0]) ?? null };
  }

  #fail(error: RunError, echo = false): void {
    this.#errors.push({ error, echo });
  }

  #stopOthers(): void {
    if (this.#stopping === 'failed') return;
    this.#stopping = 'failed';
    this.#wind(this.#patience.peerMs);
  }

  /** Asks, then SIGTERM after `graceMs`, then SIGKILL; while a checkpoint is being written, later. */
  #wind(graceMs: number): void {
    const { killMs, saveMs } = this.#patience;
    const lastMs = performance.now() + graceMs + saveMs;
    for (const { process } of this.#workers) process.send({ type: 'stop' });
    const force = () => {
      const saving = this.#workers.some(({ exit, phase }) => exit === null && phase === SAVING);
      if (saving && this.#stopping === 'asked' && performance.now() < lastMs) {
        this.#after(Math.min(1000, killMs), force);
        return;
      }
      for (const worker of this.#workers) this.#signal(worker, 'SIGTERM');
      this.#after(killMs, () => {
        for (const worker of this.#workers) this.#signal(worker, 'SIGKILL');
      });
    };
    this.#after(graceMs, force);
  }

  #signal(worker: Rank, signal: 'SIGTERM' | 'SIGKILL'): void {
    if (worker.exit) return;
    worker.signalled = true;
    worker.process.kill(signal);
  }

  #after(ms: number, action: () => void): void {
    const timer = setTimeout(() => {
      this.#timers.delete(timer);
      action();
    }, ms);
    this.#timers.add(timer);
  }

  #watchHeartbeats(): NodeJS.Timeout {
    const everyMs = Math.min(1000, this.#patience.heartbeatMs / 4);
    let lookedAtMs = performance.now();
    return setInterval(() => {
      const nowMs = performance.now();
      const wasAwayMs = nowMs - lookedAtMs - everyMs;
      lookedAtMs = nowMs;
      for (const worker of this.#workers) {
        // When this process itself did not run (a suspended machine), the silence is ours.
        if (wasAwayMs > 2 * everyMs) worker.heardAtMs += wasAwayMs;
        const patienceMs = worker.heartbeats ? this.#patience.heartbeatMs : this.#patience.firstHeartbeatMs;
        if (worker.exit || worker.muted || worker.result || nowMs - worker.heardAtMs < patienceMs) continue;
        const seconds = Math.round((nowMs - worker.heardAtMs) / 1000);
        const message = `Worker of ${name(worker)} gave no sign of life for ${seconds} s and was ended.${quote(worker)}`;
        worker.muted = true;
        this.#fail({ code: 'worker-died', message, ...this.#place(worker) });
        this.#signal(worker, 'SIGKILL');
        this.#stopOthers();
      }
    }, everyMs);
  }

  /** A run whose folder is deleted has nowhere left to save: it ends, whatever has the name by then. */
  async #watchFolder(): Promise<NodeJS.Timeout> {
    const { runFolder } = this.#options;
    const identity = () =>
      stat(runFolder).then(
        ({ dev, ino }) => `${dev} ${ino}`,
        (error: NodeJS.ErrnoException) => (error.code === 'ENOENT' ? null : 'unknown'),
      );
    const ours = await identity();
    let told = false;
    return setInterval(async () => {
      const now = await identity();
      if (told || now === ours || now === 'unknown') return;
      told = true;
      const message = `The run's folder ${runFolder} was deleted or replaced while it ran, so the run was ended: nothing could be saved any more. Start it again.`;
      this.#fail({ code: 'io', message, rank: null, step: this.#steps.get(0) ?? null });
      this.kill();
    }, FOLDER_MS);
  }

  #end(): EndEvent {
    for (const event of this.#held ?? []) this.#options.onEvent(event);
    const checkpoints = this.#checkpoints;
    const common = { event: 'end', checkpoints, peakBytesByRank: this.#peakBytes } as const;
    const cause = this.#errors.find(({ echo }) => !echo) ?? this.#errors[0];
    if (cause) return { ...common, status: 'failed', error: cause.error };
    const finished = this.#workers.length > 0 && this.#workers.every(({ result }) => result?.status === 'finished');
    if (this.#firstStep !== null && this.#workers.some(({ result }) => result === null))
      this.#options.onEvent({
        event: 'log',
        rank: null,
        line: `The ranks did not stop by themselves and were ended: ${this.#loss()}.`,
      });
    return { ...common, status: finished ? 'finished' : 'stopped' };
  }

  /** What an end by force costs, in words. */
  #loss(): string {
    const done = Math.max(-1, ...this.#steps.values()) + 1;
    const saved = Math.max(-1, ...this.#checkpoints.map(({ step }) => step));
    const lost = Math.max(0, done - (saved < 0 ? (this.#firstStep ?? done) : saved));
    if (lost === 0) return 'no reported step is lost';
    const are = `${counted(lost, 'step')} ${lost === 1 ? 'is' : 'are'} lost`;
    return saved < 0
      ? `${are}, since no checkpoint was saved`
      : `${are} since the checkpoint after ${counted(saved, 'step')}`;
  }
}

function name({ ranks }: Rank): string {
  return ranks.length === 1 ? `rank ${ranks[0]}` : `ranks ${ranks[0]} to ${ranks[ranks.length - 1]}`;
}

function obituary(worker: Rank, { code, signal, startError }: Exit): string {
  if (startError !== null) return `Worker of ${name(worker)} could not be started: ${startError}`;
  const how = signal === null ? `exit code ${code}` : `signal ${signal}`;
  const hint = signal === 'SIGKILL' ? ' (somebody ended it, or the system ran out of memory)' : '';
  return `Worker of ${name(worker)} died with ${how}${hint}.${quote(worker)}`;
}

function quote({ process }: Rank): string {
  const lines = process.lastLines();
  return lines.length ? ` Its last lines:\n${lines.join('\n')}` : ' It printed nothing.';
}
