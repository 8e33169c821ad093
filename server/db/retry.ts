import { setTimeout as sleep } from 'node:timers/promises';

/** How long a write waits in all for a database that another process holds locked. */
const PATIENCE_MS = 30_000;

/**
 * Runs a database action again while another process holds the lock. libsql answers a held lock at once, so waiting here,
 * with jitter, keeps the event loop free. Any other error, and the last one after 30 s, is thrown as it is.
 */
export async function retryLocked<T>(action: () => Promise<T>, patienceMs = PATIENCE_MS): Promise<T> {
  const deadline = performance.now() + patienceMs;
  for (let waitMs = 10; ; waitMs = Math.min(2 * waitMs, 500)) {
    try {
      return await action();
    } catch (error) {
      if (!isLocked(error) || performance.now() > deadline) throw error;
      await sleep(waitMs * (0.5 + Math.random()));
    }
  }
}

/** Whether an error says that somebody else holds the database: Prisma's P1008, or SQLite's own words. */
export function isLocked(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  const { code } = error as { code?: unknown };
  return (
    code === 'P1008' ||
    (typeof code === 'string' && code.startsWith('SQLITE_BUSY')) ||
    /database (table )?is locked/.test(error.message)
  );
}

/** Whether an error says that the disk of the database is full. */
export function isFull(error: unknown): boolean {
  return (
    error instanceof Error && /SQLITE_FULL|disk is full/.test(`${(error as { code?: unknown }).code} ${error.message}`)
  );
}

/** The same of any disk that we write to, also where it is told of as the cause of something else. */
export function isFullDisk(error: unknown): boolean {
  if (isFull(error)) return true;
  if (!(error instanceof Error)) return false;
  const { code, details } = error as { code?: unknown; details?: { code?: unknown } };
  return [code, details?.code].some((each) => each === 'ENOSPC' || each === 'EDQUOT') || isFullDisk(error.cause);
}
