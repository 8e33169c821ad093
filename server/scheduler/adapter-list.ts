import { type AdapterEntry, discoverAdapters } from '../../engine/node/adapters.ts';

/** This machine's adapters, listed once in the background: a driver may take seconds to start. */
export class AdapterList {
  readonly #discover: () => Promise<AdapterEntry[]>;
  #entries: Promise<AdapterEntry[]> | null = null;

  constructor(discover: () => Promise<AdapterEntry[]> = () => discoverAdapters()) {
    this.#discover = discover;
  }

  /** The adapters, best first. Rejects with `no-adapter`; the next call then looks again. */
  get(): Promise<AdapterEntry[]> {
    this.#entries ??= this.#discover().catch((error: unknown) => {
      this.#entries = null;
      throw error;
    });
    return this.#entries;
  }
}
