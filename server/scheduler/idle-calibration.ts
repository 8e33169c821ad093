import type { Logger } from 'pino';
import { StudioError } from '../../engine/errors.ts';
import type { AdapterEntry } from '../../engine/node/adapters.ts';
import { placesFrom } from '../../engine/node/calibrate.ts';
import { readCalibration, writeCalibration } from '../../engine/node/calibration-store.ts';
import type { AdapterRates } from '../../engine/schedule/rates.ts';
import { type CoreTicks, QUIET_SHARE, readCoreTicks, shareOfOthers } from './machine-load.ts';

export interface IdleCalibrationOptions {
  readonly adapters: () => Promise<readonly AdapterEntry[]>;
  /** Slot → the run that has it: the ids of adapters in use. */
  readonly held: ReadonlyMap<string, string>;
  readonly dataFolder: string;
  /** Measures the first of these adapters, the others with it, elsewhere; ends early, with an error, when aborted. */
  readonly measure: (places: readonly string[], signal: AbortSignal) => Promise<AdapterRates>;
  readonly log: Logger;
  /** How long no run may have run, nor others have kept the machine busy, before something is measured. */
  readonly idleMs?: number;
  readonly readTicks?: () => CoreTicks | null;
}

/** Where an adapter stands that has no rates of its own: nothing has asked for it yet, it waits and for what, or it failed. */
export interface CalibrationState {
  readonly state: 'none' | 'waiting' | 'measuring' | 'failed';
  /** For a person; empty where nothing is to be said. */
  readonly note: string;
}

const NONE: CalibrationState = { state: 'none', note: '' };

/**
 * Measures each adapter that a run has used or a person asks for, while nothing runs and the machine is quiet, so that the
 * next prediction tells its time by the adapter's own rates. A run that starts meanwhile comes first. What was measured beside
 * a run, or while other work kept the machine busy, is thrown away: rates of a loaded machine say nothing of it at rest.
 */
export class IdleCalibration {
  readonly #options: IdleCalibrationOptions;
  readonly #idleMs: number;
  readonly #readTicks: () => CoreTicks | null;
  /** To be measured and not yet looked at; `true`: also if it was measured before. */
  readonly #waiting = new Map<string, boolean>();
  readonly #failed = new Map<string, string>();
  /** When a run last held an adapter, and when others last kept the machine busy. */
  #heldAtMs = performance.now();
  #loadedAtMs = 0;
  #share = 0;
  #ticks: { readonly at: CoreTicks | null; readonly atMs: number };
  #measuring: { readonly abort: AbortController; readonly done: Promise<void>; readonly id: string | null } | null =
    null;
  readonly #timer: NodeJS.Timeout;

  constructor(options: IdleCalibrationOptions) {
    this.#options = options;
    this.#idleMs = options.idleMs ?? 5000;
    this.#readTicks = options.readTicks ?? readCoreTicks;
    this.#ticks = { at: this.#readTicks(), atMs: performance.now() };
    this.#timer = setInterval(() => this.#look(), this.#idleMs / 10);
    this.#timer.unref();
  }

  /** Resolves when nothing is being measured any more. */
  async close(): Promise<void> {
    clearInterval(this.#timer);
    this.#measuring?.abort.abort();
    await this.#measuring?.done;
  }

  /** Has an adapter measured, again if it was before, as soon as nothing runs and the machine is quiet. Throws `not-found`. */
  async ask(id: string): Promise<void> {
    const known = (await this.#options.adapters()).some((entry) => entry.id === id);
    if (!known) throw new StudioError('not-found', `There is no adapter ${id} here.`);
    this.#failed.delete(id);
    this.#waiting.set(id, true);
  }

  stateOf(id: string): CalibrationState {
    if (this.#measuring?.id === id) return { state: 'measuring', note: 'Its rates are being measured.' };
    if (this.#waiting.has(id)) return { state: 'waiting', note: this.#waitsFor() };
    const problem = this.#failed.get(id);
    return problem === undefined ? NONE : { state: 'failed', note: problem };
  }

  #waitsFor(): string {
    if (this.#options.held.size > 0) return 'Its rates are measured when no run is going on.';
    if (performance.now() - this.#loadedAtMs < 2 * this.#idleMs)
      return (
        `Its rates are not measured yet: other work takes ${Math.round(this.#share * 100)} % of this machine's cores, and ` +
        'rates of a loaded machine would not be its own. They are measured once it is quiet.'
      );
    return 'Its rates are measured in a moment.';
  }

  #look(): void {
    const { held } = this.#options;
    this.#weigh();
    if (held.size > 0) {
      for (const id of held.keys()) if (!this.#waiting.has(id)) this.#waiting.set(id, false);
      this.#heldAtMs = performance.now();
      this.#measuring?.abort.abort();
      return;
    }
    if (this.#measuring || this.#waiting.size === 0) return;
    if (performance.now() - Math.max(this.#heldAtMs, this.#loadedAtMs) < this.#idleMs) return;
    this.#begin();
  }

  /** How busy others keep the machine, over about half of the time that it has to be quiet; not while something is measured. */
  #weigh(): void {
    if (this.#measuring || performance.now() - this.#ticks.atMs < this.#idleMs / 2) return;
    const share = this.#sinceLast();
    // While a run goes on, its workers are most of what is busy, and count as others until they end.
    if (this.#options.held.size > 0) return;
    this.#share = share;
    if (share > QUIET_SHARE) this.#loadedAtMs = performance.now();
  }

  #sinceLast(): number {
    const before = this.#ticks.at;
    this.#ticks = { at: this.#readTicks(), atMs: performance.now() };
    return shareOfOthers(before, this.#ticks.at);
  }

  #begin(): void {
    const abort = new AbortController();
    const [[id, again]] = this.#waiting;
    this.#waiting.delete(id);
    const done = this.#measure(id, again, abort.signal).finally(() => {
      this.#measuring = null;
    });
    this.#measuring = { abort, done, id };
  }

  /** Never rejects: only a better estimate is lost. */
  async #measure(id: string, again: boolean, signal: AbortSignal): Promise<void> {
    const { adapters, held, dataFolder, measure, log } = this.#options;
    const later = () => this.#waiting.set(id, again || this.#waiting.get(id) === true);
    try {
      const all = await adapters();
      const entry = all.find((one) => one.id === id);
      if (!entry || (!again && (await readCalibration(dataFolder, entry)))) return;
      this.#sinceLast();
      const rates = await measure(placesFrom(entry, all), signal);
      if (signal.aborted || held.size > 0) throw new Error('a run began meanwhile');
      const share = this.#sinceLast();
      if (share > QUIET_SHARE) {
        this.#share = share;
        this.#loadedAtMs = performance.now();
        log.warn({ id, share }, 'other work kept the machine busy while an adapter was measured: it is measured again');
        later();
        return;
      }
      await writeCalibration(dataFolder, entry, rates);
    } catch (error) {
      if (signal.aborted || held.size > 0) later();
      else {
        this.#failed.set(id, `Its rates were not measured: ${error instanceof Error ? error.message : String(error)}`);
        log.warn({ error }, 'an adapter was not calibrated');
      }
    }
  }
}
