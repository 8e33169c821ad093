/** At most so often Dawn asks the device. A round trip takes 35 to 80 µs; a sleep of the system, 60 at least. */
const ASK_EVERY_MS = 0.05;

let askedAt = 0;
let sleeps = true;
let isPaced = false;
const nobody = new Int32Array(new SharedArrayBuffer(4));

/**
 * Paces Dawn's questions whether the device is done. It asks in a `setImmediate` that it sets again for as long as anything
 * is awaited, each time with a new function that V8 has to collect and to finalize: 100,000 a second and more, and collections
 * that stop the main thread for 100 to 230 ms. `onGpu`: whether this thread may spin between two questions. Beside a software adapter
 * it sleeps: that needs the cores.
 */
export function paceDawn(onGpu: boolean): void {
  sleeps = !onGpu;
  if (isPaced) return;
  isPaced = true;
  const set = globalThis.setImmediate;
  const ask = (question: () => void): void => {
    const left = ASK_EVERY_MS - (performance.now() - askedAt);
    if (left > 0 && !sleeps) {
      set(ask, question);
      return;
    }
    if (left > 0) Atomics.wait(nobody, 0, 0, left);
    askedAt = performance.now();
    question();
  };
  const paced = (callback: (...args: unknown[]) => void, ...args: unknown[]) =>
    isDawns(callback) ? set(ask, callback) : set(callback, ...args);
  Object.defineProperties(paced, Object.getOwnPropertyDescriptors(set));
  globalThis.setImmediate = paced as typeof setImmediate;
}

/** Dawn's has no name, takes nothing and is not JavaScript; a promise's `resolve`, which is much like it, takes a value. */
function isDawns(callback: (...args: unknown[]) => void): boolean {
  const { name, length } = callback;
  return name === '' && length === 0 && Function.prototype.toString.call(callback) === 'function () { [native code] }';
}
