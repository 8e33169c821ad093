import { once } from 'node:events';
import { createWriteStream } from 'node:fs';
import { resolve } from 'node:path';
import { StudioError } from '../../engine/errors.ts';
import type { RunEvent } from '../../engine/trainer/events.ts';

export interface Report {
  write(event: RunEvent): void;
  close(): Promise<void>;
}

/** One JSON object a line. It begins with the start event: lines of log that come earlier wait for it. */
export async function openReport(file: string | undefined): Promise<Report> {
  if (file === undefined) return { write: () => undefined, close: async () => undefined };
  const stream = file === '-' ? process.stdout : createWriteStream(resolve(file));
  let failure: Error | null = null;
  if (stream !== process.stdout) {
    stream.on('error', (error) => {
      failure = error;
    });
    await Promise.race([once(stream, 'open'), once(stream, 'error')]).catch((error: Error) => {
      failure = error;
    });
  }
  const check = () => {
    if (failure)
      throw new StudioError(
        'io',
        `--report ${file} cannot be written: ${failure.message}.`,
        { file },
        { cause: failure },
      );
  };
  await new Promise((resolve) => setImmediate(resolve));
  check();
  const put = (event: RunEvent) => stream.write(`${JSON.stringify(event)}\n`);
  let held: RunEvent[] | null = [];
  return {
    write(event) {
      if (held !== null && event.event === 'log') {
        held.push(event);
        return;
      }
      if (held !== null && event.event !== 'start') for (const earlier of held.splice(0)) put(earlier);
      put(event);
      for (const earlier of held ?? []) put(earlier);
      held = null;
    },
    async close() {
      // A stream that failed has closed by itself already.
      check();
      if (stream !== process.stdout && !stream.closed) {
        stream.end();
        await once(stream, 'close');
      }
      check();
    },
  };
}
