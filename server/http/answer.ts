import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';
import type { Logger } from 'pino';
import { answerApi, sendError } from './api.ts';
import { RequestError } from './errors.ts';
import { type Guard, isApi } from './guard.ts';
import { setSecurityHeaders } from './headers.ts';
import type { Pages } from './pages.ts';
import type { Route } from './router.ts';

export interface Answering {
  readonly guard: Guard;
  readonly routes: readonly Route[];
  /** Null: this server has no pages. */
  readonly pages: Pages | null;
  /** The data folder, whose place is nobody's business. */
  readonly root: string;
  readonly log: Logger;
}

/** Answers one request: the guard first, whatever it is for; then the interface, before Next; then the pages. */
export async function answer(by: Answering, request: IncomingMessage, response: ServerResponse): Promise<void> {
  const { guard, routes, pages, root, log } = by;
  response.on('error', () => undefined); // the reader left; whoever writes notices by itself
  try {
    setSecurityHeaders(response);
    guard.checkSource(request);
    const url = parseUrl(request);
    if (isApi(request)) {
      guard.checkToken(request);
      await answerApi(routes, url, request, response);
      return;
    }
    if (request.method !== 'GET' && request.method !== 'HEAD')
      throw new RequestError('method-not-allowed', 'A page can only be read.');
    const exchanged = guard.exchange(url);
    if (exchanged) {
      response.writeHead(303, {
        Location: exchanged.location,
        'Set-Cookie': exchanged.cookie,
        'Cache-Control': 'no-store',
      });
      response.end();
      return;
    }
    guard.checkToken(request);
    if (!pages) throw new RequestError('bad-request', 'This server has no pages.');
    await pages.answer(request, response);
  } catch (error) {
    sendError(error, request, response, root, log);
  }
}

/**
 * Decides on a socket that is not socket.io's: only the pages' development server has one. Any other is closed, also
 * where the other side would not: nothing else bounds an upgraded connection.
 */
export function answerUpgrade(
  { guard, pages }: Answering,
  request: IncomingMessage,
  socket: Duplex,
  head: Buffer,
): void {
  try {
    guard.checkSource(request, true);
    guard.checkToken(request);
    if (pages) pages.upgrade(request, socket, head);
    else socket.destroy();
  } catch {
    socket.end('HTTP/1.1 403 Forbidden\r\nConnection: close\r\n\r\n', () => socket.destroy());
  }
}

function parseUrl(request: IncomingMessage): URL {
  const target = request.url ?? '';
  // "http://other/…" and "*" are for proxies and servers at large.
  if (!target.startsWith('/') || target.includes('\0'))
    throw new RequestError('bad-request', 'The address is not a path.');
  try {
    const url = new URL(`http://studio${target}`);
    decodeURIComponent(url.pathname);
    return url;
  } catch {
    throw new RequestError('bad-request', 'The address cannot be read.');
  }
}
