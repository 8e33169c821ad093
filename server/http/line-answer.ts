import { once } from 'node:events';
import type { ServerResponse } from 'node:http';
import { StudioError } from '../../engine/errors.ts';
import { DATA_POLICY } from './headers.ts';

/**
 * Answers with one line of JSON after another, each as it comes. A failure before the first line is the answer to the
 * request: it is thrown. `root` is not told to anybody.
 */
export async function sendLines<Line>(
  lines: AsyncIterable<Line>,
  response: ServerResponse,
  root: string,
  failureOf: (line: Line) => { readonly code: string; readonly message: string } | null,
): Promise<void> {
  const hidden = JSON.stringify(`${root}/`).slice(1, -1);
  for await (const line of lines) {
    if (!response.headersSent) {
      const failure = failureOf(line);
      if (failure) throw new StudioError(failure.code as StudioError['code'], failure.message);
      response.writeHead(200, {
        'Content-Type': 'application/x-ndjson; charset=utf-8',
        'Cache-Control': 'no-store',
        'Content-Security-Policy': DATA_POLICY,
      });
    }
    if (!response.write(`${JSON.stringify(line).replaceAll(hidden, '')}\n`))
      await Promise.race([once(response, 'drain'), once(response, 'close')]);
  }
  response.end();
}

/** Aborts when the reader is gone. */
export function leaving(response: ServerResponse): AbortSignal {
  const left = new AbortController();
  if (response.destroyed) left.abort();
  response.once('close', () => left.abort());
  return left.signal;
}
