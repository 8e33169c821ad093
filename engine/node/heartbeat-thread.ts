import { writeSync } from 'node:fs';
import { workerData } from 'node:worker_threads';
import { HEARTBEAT_MS, type HeartbeatState, MAIN_STALL_MS, PHASES } from './heartbeat.ts';

/**
 * The thread that says, once a second, that this process lives, whatever the main thread is doing. It falls silent when
 * the main thread has not come round for MAIN_STALL_MS: a process that hangs must not look alive.
 */
const { state, descriptor } = workerData as { state: HeartbeatState; descriptor: number };
const words = new Int32Array(state);
let seen = Atomics.load(words, 0);
let seenAtMs = performance.now();

setInterval(() => {
  const turn = Atomics.load(words, 0);
  if (turn !== seen) {
    seen = turn;
    seenAtMs = performance.now();
  }
  if (performance.now() - seenAtMs > MAIN_STALL_MS) return;
  const step = Atomics.load(words, 2);
  const beat = { phase: PHASES[Atomics.load(words, 1)], step: step < 0 ? null : step };
  try {
    writeSync(descriptor, `${JSON.stringify(beat)}\n`);
  } catch {
    // The parent has gone, or does not read; the main thread notices the first by its IPC channel.
  }
}, HEARTBEAT_MS);
