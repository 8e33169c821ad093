import { once } from 'node:events';
import type { Server } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { StudioError } from '../../engine/errors.ts';
import type { LiveServer } from '../live/socket.ts';

/** How long open requests may take once there is nothing more to wait for. */
const DRAIN_MS = 2000;

/** Listens, and returns the port (another than asked when that was 0). Throws `port-in-use`, or `io` with the reason. */
export async function listen(http: Server, host: string, port: number): Promise<number> {
  http.listen({ host, port });
  try {
    await once(http, 'listening');
  } catch (cause) {
    const { code, message } = cause as NodeJS.ErrnoException;
    if (code === 'EADDRINUSE')
      throw new StudioError(
        'port-in-use',
        `Port ${port} on ${host} is in use by another program. Choose another: npm start -- --port ${port === 65_535 ? 3000 : port + 1} (or PORT=${port === 65_535 ? 3000 : port + 1}).`,
        { host, port },
        { cause },
      );
    const why =
      code === 'EACCES'
        ? 'the system reserves that port; choose one above 1023 with --port'
        : code === 'EADDRNOTAVAIL' || code === 'ENOTFOUND'
          ? 'this machine has no such address; choose another with --host'
          : message;
    throw new StudioError('io', `Cannot listen on ${host}, port ${port}: ${why}.`, { host, port }, { cause });
  }
  return (http.address() as AddressInfo).port;
}

/** The open connections of a server, those that were upgraded among them: Node itself forgets those. */
export function trackConnections(http: Server): ReadonlySet<Socket> {
  const open = new Set<Socket>();
  http.on('connection', (socket) => {
    open.add(socket);
    socket.once('close', () => open.delete(socket));
  });
  return open;
}

/**
 * Lets the sockets go and takes no more requests; the open ones have 2 s to end, then they are cut. socket.io closes the
 * HTTP server with itself.
 */
export async function closeHttp(http: Server, io: LiveServer, connections: ReadonlySet<Socket>): Promise<void> {
  const closed = io.close();
  http.closeIdleConnections();
  const cut = setTimeout(() => {
    for (const connection of connections) connection.destroy();
  }, DRAIN_MS);
  await closed;
  clearTimeout(cut);
}
