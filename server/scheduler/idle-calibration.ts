import type { Logger } from 'pino';
import type { AdapterEntry } from '../../engine/node/adapters.ts';
import { readCalibration, writeCalibration } from '../../engine/node/calibration-store.ts';
import type { AdapterRates } from '../../engine/schedule/rates.ts';

export interface IdleCalibrationOptions {
  readonly adapters: () => Promise<readonly AdapterEntry[]>;
  /** Slot → the run that has it: the ids of adapters in use. */
  readonly held: ReadonlyMap<string, string>;
  readonly dataFolder: string;
  /** Measures an adapter's rates, elsewhere; ends early, with an error, when aborted. */
  readonly measure: (id: string, signal: AbortSignal) => Promise<AdapterRates>;
  readonly log: Logger;
  /** How long no run may have run before something is measured. */
  readonly idleMs?: number;
}

/**
 * Measures each adapter that a run has used, once, while nothing runs, so that the next prediction tells its time by the
 * adapter's own rates. A run that starts meanwhile comes first: what was measured beside it is thrown away.
 */
export class IdleCalibration {
  readonly #options: IdleCalibrationOptions;
  readonly #idleMs: number;
  /** Used and not yet looked at. */
  readonly #waiting = new Set<string>();
  #busyAtMs = performance.now();
  #measuring: { readonly abort: AbortController; readonly done: Promise<void> } | null = null;
  readonly #timer: NodeJS.Timeout;

  constructor(options: IdleCalibrationOptions) {
    this.#options = options;
    this.#idleMs = options.idleMs ?? 5000;
    this.#timer = setInterval(() => this.#look(), this.#idleMs / 10);
    this.#timer.unref();
  }

  /** Resolves when nothing is being measured any more. */
  async close(): Promise<void> {
    clearInterval(this.#timer);
    this.#measuring?.abort.abort();
    await this.#measuring?.done;
  }

  #look(): void {
    const { held } = this.#options;
    if (held.size > 0) {
      for (const id of held.keys()) this.#waiting.add(id);
      this.#busyAtMs = performance.now();
      this.#measuring?.abort.abort();
      return;
    }
    if (this.#measuring || this.#waiting.size === 0 || performance.now() - this.#busyAtMs < this.#idleMs) return;
    const abort = new AbortController();
    const done = this.#measure(abort.signal).finally(() => {
      this.#measuring = null;
    });
    this.#measuring = { abort, done };
  }

  /** Never rejects: only a better estimate is lost. */
  async #measure(signal: AbortSignal): Promise<void> {
    const { adapters, held, dataFolder, measure, log } = this.#options;
    const used = [...this.#waiting];
    this.#waiting.clear();
    try {
      for (const entry of (await adapters()).filter(({ id }) => used.includes(id))) {
        if (await readCalibration(dataFolder, entry)) continue;
        const rates = await measure(entry.id, signal);
        if (signal.aborted || held.size > 0) throw new Error('a run began meanwhile');
        await writeCalibration(dataFolder, entry, rates);
      }
    } catch (error) {
      if (signal.aborted || held.size > 0) for (const id of used) this.#waiting.add(id);
      else log.warn({ error }, 'an adapter was not calibrated');
    }
  }
}
