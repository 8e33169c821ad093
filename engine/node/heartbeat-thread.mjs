// Plain JavaScript: TypeScript is not loaded in threads.
import { writeSync } from 'node:fs';
import { workerData } from 'node:worker_threads';

/**
 * The thread that says, once a second, that this process lives, whatever the main thread is doing. It falls silent when
 * the main thread has not come round for too long: a process that hangs must not look alive.
 *
 * @type {{ state: SharedArrayBuffer, descriptor: number, phases: readonly string[], beatMs: number, stallMs: number }}
 */
const { state, descriptor, phases, beatMs, stallMs } = workerData;
const words = new Int32Array(state);
let seen = Atomics.load(words, 0);
let seenAtMs = performance.now();

setInterval(() => {
  const turn = Atomics.load(words, 0);
  if (turn !== seen) {
    seen = turn;
    seenAtMs = performance.now();
  }
  if (performance.now() - seenAtMs > stallMs) return;
  const step = Atomics.load(words, 2);
  const beat = { phase: phases[Atomics.load(words, 1)], step: step < 0 ? null : step };
  try {
    writeSync(descriptor, `${JSON.stringify(beat)}\n`);
  } catch {
    // The parent has gone, or does not read; the main thread notices the first by its IPC channel.
  }
}, beatMs);
