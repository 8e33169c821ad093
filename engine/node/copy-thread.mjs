// Plain JavaScript: TypeScript is not loaded in threads.
import { workerData } from 'node:worker_threads';
import koffi from 'koffi';

/**
 * A thread that copies: takes chunks of the jobs of a ring, oldest job first, for as long as there are any, and sleeps. The
 * ring is laid out in copy-threads.ts.
 *
 * @type {{ state: SharedArrayBuffer, layout: import('./copy-threads.ts').RingLayout }}
 */
const { state, layout } = workerData;
const {
  posted: POSTED,
  ended: ENDED,
  firstJob,
  jobWords,
  slots,
  unclaimed,
  unfinished,
  wide,
  stop: STOP,
  busy: BUSY,
} = layout;
const words = new Int32Array(state);
const numbers = new Float64Array(state);
const memcpy = koffi.load('libc.so.6').func('void *memcpy(uintptr_t target, uintptr_t source, size_t bytes)');

/** A thread may be ended from outside while it is idle; in the middle of a call into the C library that would end the process. */
function setIdle() {
  Atomics.sub(words, BUSY, 1);
  Atomics.notify(words, BUSY);
}

/** The number of the oldest job that may have chunks left. */
let at = 0;
let slept = false;
while (Atomics.load(words, STOP) === 0) {
  const posted = Atomics.load(words, POSTED);
  if (at === posted) {
    setIdle();
    Atomics.wait(words, POSTED, posted);
    // Before STOP is looked at: whoever sets it and then finds no thread busy knows that none calls the library any more.
    Atomics.add(words, BUSY, 1);
    slept = true;
    continue;
  }
  // A slot is used again only once its job has ended.
  if (((posted - at) | 0) > slots) at = (posted - slots) | 0;
  const job = firstJob + (at & (slots - 1)) * jobWords;
  // Once a chunk is claimed the job cannot end before it is done, so that what the slot says holds; not sooner.
  const left = Atomics.load(words, job + unclaimed) > 0 ? Atomics.sub(words, job + unclaimed, 1) : 0;
  if (left <= 0) {
    at = (at + 1) | 0;
    continue;
  }
  // Whoever has just woken wakes two more while there is work, which spares the main thread a call for each.
  if (slept && left > 1) Atomics.notify(words, POSTED, 2);
  slept = false;
  const [target, source, bytes, chunk] = numbers.subarray(job / 2 + wide, job / 2 + wide + 4);
  const begin = (left - 1) * chunk;
  memcpy(target + begin, source + begin, Math.min(chunk, bytes - begin));
  if (Atomics.sub(words, job + unfinished, 1) === 1) {
    Atomics.add(words, ENDED, 1);
    Atomics.notify(words, ENDED);
  }
}
setIdle();
