import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Logger } from 'pino';
import { StudioError } from '../../engine/errors.ts';
import { BroughtCheckpoints } from '../checkpoints/brought-checkpoints.ts';
import { answerFor } from './errors.ts';
import { DATA_POLICY } from './headers.ts';
import { matchRoute, type Route } from './router.ts';
import { checkpointPlaces } from './routes/checkpoint-places.ts';
import { checkpointRoutes } from './routes/checkpoints.ts';
import { compareRoutes } from './routes/compare.ts';
import { corpusRoutes } from './routes/corpora.ts';
import { eventRoutes } from './routes/events.ts';
import { fileRoutes } from './routes/files.ts';
import { machineRoutes } from './routes/machine.ts';
import { runRoutes } from './routes/runs.ts';
import { sampleRoutes } from './routes/sample.ts';
import { traceRoutes } from './routes/traces.ts';
import type { Services } from './services.ts';

const PREFIX = '/api/v1';

/** Every address below /api/v1. */
export function apiRoutes(services: Services): Route[] {
  const brought = new BroughtCheckpoints(services.folder);
  const places = checkpointPlaces(services, brought);
  return [
    ...machineRoutes(services),
    ...runRoutes(services),
    ...eventRoutes(services),
    ...compareRoutes(services),
    ...checkpointRoutes(services, brought, places),
    ...sampleRoutes(services, places),
    ...traceRoutes(services),
    ...corpusRoutes(services),
    ...fileRoutes(services),
  ];
}

/** Answers a request that passed the guard. Rejects with the error to answer with. */
export async function answerApi(
  routes: readonly Route[],
  url: URL,
  raw: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  if (!url.pathname.startsWith(`${PREFIX}/`)) throw new StudioError('not-found', 'There is nothing at this address.');
  const { route, params } = matchRoute(routes, raw.method ?? 'GET', url.pathname.slice(PREFIX.length));
  const answer = await route.handle({ raw, response, query: url.searchParams, params });
  if (answer !== 'streamed') sendJson(response, answer.status, answer.body);
}

/** Answers with an error, or breaks the connection when an answer has begun. `root` is not told to anybody. */
export function sendError(
  error: unknown,
  raw: IncomingMessage,
  response: ServerResponse,
  root: string,
  log: Logger,
): void {
  if (isGone(error, raw)) {
    response.destroy();
    return;
  }
  const { status, body, unforeseen } = answerFor(error);
  if (unforeseen) log.error({ err: error, method: raw.method, path: raw.url?.split('?')[0] }, 'a request failed');
  if (response.headersSent) {
    response.destroy();
    return;
  }
  // What the person still sends is not read any more.
  if (!raw.complete) response.setHeader('Connection', 'close');
  body.error.message = body.error.message.replaceAll(`${root}/`, '');
  sendJson(response, status, body);
}

function sendJson(response: ServerResponse, status: number, body: unknown): void {
  response.setHeader('Cache-Control', 'no-store');
  response.setHeader('Content-Security-Policy', DATA_POLICY);
  if (body === undefined) {
    response.writeHead(status).end();
    return;
  }
  const text = Buffer.from(JSON.stringify(body));
  response.writeHead(status, { 'Content-Type': 'application/json; charset=utf-8', 'Content-Length': text.length });
  response.end(response.req.method === 'HEAD' ? undefined : text);
}

/** The other side left while we read from it or wrote to it: nobody is there to be told. */
function isGone(error: unknown, raw: IncomingMessage): boolean {
  const { code } = error as { code?: unknown };
  return raw.destroyed && (code === 'ECONNRESET' || code === 'ERR_STREAM_PREMATURE_CLOSE' || code === 'ABORT_ERR');
}
