import type { Server as HttpServer } from 'node:http';
import { Server } from 'socket.io';
import type { Hint } from '../contract.ts';
import type { Guard } from '../http/guard.ts';
import { RUN_ID } from '../runs/run-id.ts';

/** Where socket.io answers; everything else is not its business. */
export const SOCKET_PATH = '/socket.io';
const MAX_SOCKETS = 500;
/** A page follows a run or a comparison; nobody follows everything. */
const MAX_TOPICS = 64;

interface ServerToClient {
  hint(hint: Hint): void;
}
interface ClientToServer {
  follow(topic: unknown): void;
  unfollow(topic: unknown): void;
}
export type LiveServer = Server<ClientToServer, ServerToClient>;

/**
 * The sockets of the pages. They carry hints only, volatile: a page that does not read gets none, so it costs nothing,
 * and it finds what it missed by asking for events after its last sequence. Handshakes pass the same guard as requests.
 */
export function openSockets(http: HttpServer, guard: Guard): LiveServer {
  const io: LiveServer = new Server(http, {
    path: SOCKET_PATH,
    transports: ['websocket'],
    serveClient: false,
    perMessageDeflate: false,
    httpCompression: false,
    maxHttpBufferSize: 4096,
    // Upgrades to other paths are for the development server of the pages.
    destroyUpgrade: false,
    connectTimeout: 10_000,
    allowRequest: (request, decide) => {
      try {
        guard.checkSource(request, true);
        guard.checkToken(request);
        if (io.engine.clientsCount >= MAX_SOCKETS) throw new Error('too many sockets are open');
        decide(null, true);
      } catch (error) {
        decide((error as Error).message, false);
      }
    },
  });
  io.on('connection', (socket) => {
    socket.on('follow', (topic) => {
      if (isTopic(topic) && socket.rooms.size <= MAX_TOPICS) void socket.join(topic);
    });
    socket.on('unfollow', (topic) => {
      if (isTopic(topic)) void socket.leave(topic);
    });
  });
  return io;
}

/** Sends a hint to those who follow the run or the list, each once. */
export function sendHint(io: LiveServer, hint: Hint): void {
  io.to([hint.runId, 'runs']).volatile.emit('hint', hint);
}

function isTopic(topic: unknown): topic is string {
  return topic === 'runs' || (typeof topic === 'string' && RUN_ID.test(topic));
}
