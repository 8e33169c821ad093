import { createHash, createHmac, timingSafeEqual } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { hostname, networkInterfaces } from 'node:os';
import { StudioError } from '../../engine/errors.ts';
import { RequestError } from './errors.ts';

/** What the guard knows of where the studio listens and who may use it. */
export interface GuardSettings {
  readonly host: string;
  readonly port: number;
  readonly token: string | null;
}

/** Whether an address is only reachable from this machine. */
export function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || /^127(\.\d{1,3}){3}$/.test(host);
}

/**
 * Decides, before anything else looks at it, whether a request may be answered: which name it came in under (DNS
 * rebinding), which page sent it (cross-site requests and sockets), and, when there is a token, who sent it.
 */
export class Guard {
  readonly #hosts: ReadonlySet<string>;
  readonly #tokenDigest: Buffer | null;
  readonly #session: string;
  /** Of this server alone: cookies do not tell ports apart. */
  readonly cookieName: string;

  constructor({ host, port, token }: GuardSettings) {
    this.#hosts = allowedHosts(host, port);
    this.#tokenDigest = token === null ? null : digest(token);
    // Follows from the token, so that a restart of the server signs nobody out.
    this.#session =
      token === null ? '' : createHmac('sha256', token).update('shard-studio session').digest('base64url');
    this.cookieName = `shard-studio-${port}`;
  }

  /** Throws `forbidden` for a foreign host or page. Sockets come as GET; `isSocket` says so. */
  checkSource(request: IncomingMessage, isSocket = false): void {
    const { host, origin, cookie } = request.headers;
    if (!host || !this.#hosts.has(host.toLowerCase()))
      throw new StudioError(
        'forbidden',
        'This studio does not answer under that host name. Use the address it printed.',
      );
    if (origin !== undefined && !this.#isOwnOrigin(origin)) throw foreignPage();
    const site = header(request, 'sec-fetch-site');
    const method = request.method ?? 'GET';
    const reads = method === 'GET' || method === 'HEAD';
    if (site !== undefined && site !== 'same-origin' && site !== 'none') {
      // A link from another page may open a page of ours, and nothing else.
      const opens =
        header(request, 'sec-fetch-mode') === 'navigate' && header(request, 'sec-fetch-dest') === 'document';
      if (!reads || isSocket || !opens || isApi(request)) throw foreignPage();
    }
    // A browser says where a change comes from. With a cookie and without a word of it, it is one that we do not trust.
    if (!reads && origin === undefined && site === undefined && cookie !== undefined) throw foreignPage();
  }

  /** Throws `unauthorized` unless there is no token, or the request has it, as a Bearer or as the session's cookie. */
  checkToken(request: IncomingMessage): void {
    if (this.#tokenDigest === null) return;
    const bearer = /^Bearer +(\S+)$/i.exec(request.headers.authorization ?? '')?.[1];
    if (bearer !== undefined && this.#isToken(bearer)) return;
    if (cookieValues(request, this.cookieName).some((value) => same(digest(value), digest(this.#session)))) return;
    throw new RequestError(
      'unauthorized',
      'Open the studio once as /?token=TOKEN, or send "Authorization: Bearer TOKEN".',
    );
  }

  /**
   * The one-time exchange of `?token=…` for a cookie: the cookie and the same address without the token, or null when the
   * request has none. Throws `unauthorized` for a wrong one.
   */
  exchange(url: URL): { cookie: string; location: string } | null {
    const token = url.searchParams.get('token');
    if (token === null || this.#tokenDigest === null) return null;
    if (!this.#isToken(token))
      throw new RequestError('unauthorized', 'That token is not the one this studio was started with.');
    url.searchParams.delete('token');
    return {
      cookie: `${this.cookieName}=${this.#session}; Path=/; HttpOnly; SameSite=Strict; Max-Age=2592000`,
      // One slash at the front: "//host" would lead to another site.
      location: `/${`${url.pathname}${url.search}`.replace(/^\/+/, '')}`,
    };
  }

  #isToken(token: string): boolean {
    return this.#tokenDigest !== null && same(digest(token), this.#tokenDigest);
  }

  #isOwnOrigin(origin: string): boolean {
    let url: URL;
    try {
      url = new URL(origin);
    } catch {
      return false; // "null", from a sandboxed frame
    }
    const port = url.port || (url.protocol === 'https:' ? '443' : '80');
    return url.protocol === 'http:' && url.origin === origin && this.#hosts.has(`${url.hostname}:${port}`);
  }
}

/** Whether the request is for the interface and not for a page. */
export function isApi(request: IncomingMessage): boolean {
  return /^\/api(\/|\?|$)/.test(request.url ?? '');
}

/** The exact names under which the studio is reached, each with its port; at port 80 also without. */
function allowedHosts(host: string, port: number): Set<string> {
  const names = new Set(['localhost', '127.0.0.1', '[::1]']);
  const add = (address: string) => names.add(address.includes(':') ? `[${address}]` : address.toLowerCase());
  if (host === '0.0.0.0' || host === '::') {
    add(hostname());
    for (const { address, scopeid } of Object.values(networkInterfaces()).flatMap((list) => list ?? []))
      if (!scopeid) add(address);
  } else {
    add(host);
  }
  return new Set([...names].flatMap((name) => [`${name}:${port}`, ...(port === 80 ? [name] : [])]));
}

function foreignPage(): StudioError {
  return new StudioError('forbidden', 'Another site may not use this studio.');
}

function header(request: IncomingMessage, name: string): string | undefined {
  const value = request.headers[name];
  return Array.isArray(value) ? value[0] : value;
}

function cookieValues(request: IncomingMessage, name: string): string[] {
  return (request.headers.cookie ?? '')
    .split(';')
    .map((pair) => pair.trim())
    .filter((pair) => pair.startsWith(`${name}=`))
    .map((pair) => pair.slice(name.length + 1));
}

function digest(text: string): Buffer {
  return createHash('sha256').update(text).digest();
}

function same(a: Buffer, b: Buffer): boolean {
  return timingSafeEqual(a, b);
}
