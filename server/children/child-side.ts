import { StudioError } from '../../engine/errors.ts';

/**
 * The side of the child: `work` is called once, with what the server tells; the process ends when it is done, and at once
 * when the server is gone.
 */
export function answerServer(work: (request: unknown) => Promise<void>): void {
  process.once('disconnect', () => process.exit(0));
  process.once('message', (request) => {
    void work(request).then(() => process.disconnect());
  });
}

/** Resolves when the line is handed over: the process may end then. */
export function say(line: object): Promise<void> {
  return new Promise((resolve) => process.send?.(line, undefined, undefined, () => resolve()));
}

/** An error as a line says it; one that nobody foresaw goes to the server's log, too. `what` failed then. */
export function told(error: unknown, what: string): { code: string; message: string } {
  if (error instanceof StudioError) return { code: error.code, message: error.message };
  console.error(error);
  return { code: 'internal', message: `${what} failed: ${(error as Error).message}` };
}
