import { exchange } from '../comm/exchange.ts';
import type { Mailbox } from '../comm/mailbox.ts';

export interface Waiting {
  /** How often a rank that is not ready says so, in ms: far below what any rank waits for a peer. */
  readonly beatMs?: number;
  /** After so many beats in which some ranks were ready and these were not. */
  readonly lateBeats?: number;
  /** Told once, of the ranks that the others wait for. */
  readonly onLate?: (ranks: readonly number[]) => void;
}

/**
 * Resolves with `mine` once every rank's is there. Each may take any time: ranks tell each other again and again that they
 * are at it, so that nobody takes a slow disk for a dead peer. Rejects as `mine` does, or where a peer is lost.
 */
export async function waitTogether<T>(
  mailbox: Mailbox,
  region: number,
  mine: Promise<T>,
  { beatMs = 1000, lateBeats = 30, onLate }: Waiting = {},
): Promise<T> {
  let ready = false;
  const settled = mine.then(() => {
    ready = true;
  });
  for (let beats = 0; ; ) {
    await settledOrBeat(settled, beatMs);
    const all = await exchange(mailbox, region, [ready ? 1 : 0]);
    const late = all.flatMap(([isReady], rank) => (isReady ? [] : [rank]));
    if (late.length === 0) return mine;
    if (late.length < all.length && ++beats === lateBeats) onLate?.(late);
  }
}

async function settledOrBeat(settled: Promise<void>, beatMs: number): Promise<void> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const beat = new Promise<void>((resolve) => {
    timer = setTimeout(resolve, beatMs);
  });
  await Promise.race([settled, beat]).finally(() => clearTimeout(timer));
}
