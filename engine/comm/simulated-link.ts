/**
 * A link slower than the machine's, so that one host can show what a strategy is for: bytes pass one after the other at
 * `linkGBps`, and whoever sends waits until its own have passed.
 */
export class SimulatedLink {
  private freeAtMs = 0;

  /** Resolves when the bytes have passed. */
  async pass(bytes: number, linkGBps: number): Promise<void> {
    const now = performance.now();
    this.freeAtMs = Math.max(this.freeAtMs, now) + bytes / (linkGBps * 1e6);
    const waitMs = this.freeAtMs - now;
    await new Promise((resolve) => setTimeout(resolve, waitMs));
  }
}

/** What stands beside whatever is measured over such a link. */
export function linkWords(linkGBps: number): string {
  return `simulated link, ${linkGBps} GB/s`;
}
