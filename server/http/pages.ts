import { existsSync } from 'node:fs';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { join } from 'node:path';
import type { Duplex } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { StudioError } from '../../engine/errors.ts';
import { pagePolicy } from './headers.ts';

const CLOSE_MS = 3000;
const projectFolder = fileURLToPath(new URL('../../', import.meta.url));

/** The pages, which Next draws. It sees only requests that the guard let pass and that are for a page or a static file. */
export interface Pages {
  answer(request: IncomingMessage, response: ServerResponse): Promise<void>;
  /** The development server's own socket. */
  upgrade(request: IncomingMessage, socket: Duplex, head: Buffer): void;
  close(): Promise<void>;
}

/** Starts Next: its production build, or its development server with `dev`. Throws `io` when there is no build. */
export async function openPages({ dev, host, port }: { dev: boolean; host: string; port: number }): Promise<Pages> {
  if (!dev && !existsSync(join(projectFolder, '.next/BUILD_ID')))
    throw new StudioError('io', 'The pages are not built. Run npm start, which builds them, or npx next build.');
  // Nothing of what somebody does here is told to anybody.
  process.env.NEXT_TELEMETRY_DISABLED = '1';
  const { default: next } = await import('next');
  // Next would listen for upgrades on our server by itself, behind the guard's back. This one never listens.
  const upgrades = createServer();
  const app = next({ dev, dir: projectFolder, hostname: host, port, httpServer: upgrades, quiet: !dev });
  await app.prepare();
  const handle = app.getRequestHandler();
  return {
    async answer(request, response) {
      const policy = pagePolicy(request.headers.host ?? '', dev);
      response.setHeader('Content-Security-Policy', policy);
      // Next takes the nonce for its scripts from here.
      request.headers['content-security-policy'] = policy;
      for (const name of Object.keys(request.headers)) if (isInternal(name)) delete request.headers[name];
      await handle(request, response);
    },
    upgrade(request, socket, head) {
      if (dev && request.url?.startsWith('/_next/')) upgrades.emit('upgrade', request, socket, head);
      else socket.destroy();
    },
    // The development server does not always come to its end.
    close: () => Promise.race([app.close(), sleep(CLOSE_MS, undefined, { ref: false })]),
  };
}

/** Headers by which parts of Next talk to each other. */
function isInternal(name: string): boolean {
  return name.startsWith('x-middleware-') || name.startsWith('x-invoke-') || name === 'next-action';
}
