import type { IncomingMessage, ServerResponse } from 'node:http';
import { StudioError } from '../../engine/errors.ts';
import { RequestError } from './errors.ts';

/** A request to the interface, its address taken apart. */
export interface ApiRequest {
  readonly raw: IncomingMessage;
  readonly response: ServerResponse;
  readonly query: URLSearchParams;
  /** The named segments of the route, decoded once. */
  readonly params: Readonly<Record<string, string>>;
}

/** What a route answers: a status and a JSON body (undefined: none), or `streamed` when it has written by itself. */
export type ApiAnswer = { readonly status: number; readonly body?: unknown } | 'streamed';
export type Handler = (request: ApiRequest) => Promise<ApiAnswer>;

export interface Route {
  readonly method: 'GET' | 'POST' | 'DELETE';
  /** Below /api/v1, with `:name` for a segment. */
  readonly path: string;
  readonly handle: Handler;
}

/** Finds the route of a request. A HEAD is answered as its GET. Throws `not-found` or `method-not-allowed`. */
export function matchRoute(
  routes: readonly Route[],
  method: string,
  path: string,
): { readonly route: Route; readonly params: Record<string, string> } {
  const wanted = method === 'HEAD' ? 'GET' : method;
  const segments = path.split('/');
  let known = false;
  for (const route of routes) {
    const params = matchSegments(route.path.split('/'), segments);
    if (!params) continue;
    if (route.method === wanted) return { route, params };
    known = true;
  }
  if (known) throw new RequestError('method-not-allowed', `${method} is not possible here.`);
  throw new StudioError('not-found', 'There is nothing at this address.');
}

function matchSegments(pattern: readonly string[], segments: readonly string[]): Record<string, string> | null {
  if (pattern.length !== segments.length) return null;
  const params: Record<string, string> = {};
  for (const [index, part] of pattern.entries()) {
    if (!part.startsWith(':')) {
      if (part !== segments[index]) return null;
      continue;
    }
    const text = decode(segments[index]);
    if (text === null || text === '') return null;
    params[part.slice(1)] = text;
  }
  return params;
}

function decode(segment: string): string | null {
  try {
    return decodeURIComponent(segment);
  } catch {
    return null;
  }
}

/** A whole number from the query, or `fallback` when it is not given. Throws `bad-request` outside the bounds. */
export function queryInteger(
  query: URLSearchParams,
  name: string,
  fallback: number,
  bounds: { readonly min: number; readonly max: number },
): number {
  const text = query.get(name);
  if (text === null) return fallback;
  const value = /^\d{1,15}$/.test(text) ? Number(text) : Number.NaN;
  if (!(value >= bounds.min && value <= bounds.max))
    throw new RequestError('bad-request', `${name} is a whole number from ${bounds.min} to ${bounds.max}.`);
  return value;
}
