import { io, type Socket } from 'socket.io-client';
import type { Hint } from '../../server/contract.ts';

/**
 * The one socket of the page. It carries no data, only "run x has events up to n": who hears it pulls. A topic is a run id,
 * or "runs" for the list.
 */
type HintListener = (lastSeq: number | null) => void;
interface ServerToClient {
  hint(hint: Hint): void;
}
interface ClientToServer {
  follow(topic: string): void;
  unfollow(topic: string): void;
}

let socket: Socket<ServerToClient, ClientToServer> | null = null;
const listeners = new Map<string, Set<HintListener>>();

function tell(topic: string, lastSeq: number | null): void {
  for (const listener of listeners.get(topic) ?? []) listener(lastSeq);
}

function connect(): Socket<ServerToClient, ClientToServer> {
  if (socket) return socket;
  socket = io({ transports: ['websocket'], reconnectionDelayMax: 5000 });
  // The server forgets who followed what when a connection breaks, and hints may have been missed meanwhile.
  socket.on('connect', () => {
    for (const topic of listeners.keys()) {
      socket?.emit('follow', topic);
      tell(topic, null);
    }
  });
  socket.on('hint', ({ runId, lastSeq }) => {
    tell(runId, lastSeq);
    tell('runs', null);
  });
  return socket;
}

/** Calls back on each hint for a topic: with the newest sequence, or null when only a look can tell. Returns an undo. */
export function followHints(topic: string, listener: HintListener): () => void {
  const connection = connect();
  const ofTopic = listeners.get(topic) ?? new Set();
  listeners.set(topic, ofTopic);
  ofTopic.add(listener);
  if (ofTopic.size === 1 && connection.connected) connection.emit('follow', topic);
  return () => {
    ofTopic.delete(listener);
    if (ofTopic.size) return;
    listeners.delete(topic);
    if (connection.connected) connection.emit('unfollow', topic);
  };
}
