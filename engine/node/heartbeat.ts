import { fstatSync } from 'node:fs';
import { Worker } from 'node:worker_threads';

const HEARTBEAT_MS = 1000;
/** Longer than any one thing that the main thread does in one turn: planning the largest model, compiling its shaders. */
const MAIN_STALL_MS = 60_000;
/** The descriptor that a parent opens as a pipe to hear heartbeats: after stdio and Node's own channel. */
export const HEARTBEAT_DESCRIPTOR = 4;

/** What a worker is doing, for the person who waits. */
const PHASES = [
  'starting',
  'preparing the data',
  'planning',
  'compiling',
  'filling',
  'training',
  'validating',
  'saving',
  'ending',
] as const;
export type WorkerPhase = (typeof PHASES)[number];

export interface Heartbeat {
  set(phase: WorkerPhase, step: number | null): void;
  stop(): Promise<void>;
}

/** Starts the heartbeat thread, which writes a line of JSON a second to HEARTBEAT_DESCRIPTOR if the parent opened that. */
export function startHeartbeat(): Heartbeat {
  // Turns of the main thread, phase, step.
  const state = new SharedArrayBuffer(12);
  const words = new Int32Array(state);
  words[2] = -1;
  const turn = setInterval(() => Atomics.add(words, 0, 1), HEARTBEAT_MS / 2);
  turn.unref();
  const thread = isOpen(HEARTBEAT_DESCRIPTOR)
    ? new Worker(new URL('./heartbeat-thread.mjs', import.meta.url), {
        execArgv: [],
        workerData: {
          state,
          descriptor: HEARTBEAT_DESCRIPTOR,
          phases: PHASES,
          beatMs: HEARTBEAT_MS,
          stallMs: MAIN_STALL_MS,
        },
      })
    : null;
  thread?.unref();
  return {
    set(phase, step) {
      Atomics.store(words, 1, PHASES.indexOf(phase));
      Atomics.store(words, 2, step ?? -1);
    },
    async stop() {
      clearInterval(turn);
      await thread?.terminate();
    },
  };
}

function isOpen(descriptor: number): boolean {
  try {
    fstatSync(descriptor);
    return true;
  } catch {
    return false;
  }
}
