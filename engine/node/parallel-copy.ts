import koffi, { type KoffiFunc } from 'koffi';

/** Threads that share a copy: more do not make it faster (measured on the host of an H200). */
const CHUNKS = 4;
/** Below so many bytes a copy on this thread is done before others have begun. */
const WORTH_SHARING_BYTES = 2 ** 20;

type Memcpy = KoffiFunc<(target: Uint8Array, source: Uint8Array, bytes: number) => unknown>;
let memcpy: Memcpy | undefined;

/**
 * Copies bytes on several threads while this one goes on. One thread moves 5 to 10 GB/s into or out of a mapped range, four
 * about 30. Both views must be of the same length and stay mapped until it resolves.
 */
export async function parallelCopy(target: Uint8Array, source: Uint8Array): Promise<void> {
  if (source.byteLength !== target.byteLength) {
    throw new RangeError(`a copy of ${source.byteLength} bytes to ${target.byteLength}`);
  }
  if (source.byteLength < WORTH_SHARING_BYTES) {
    target.set(source);
    return;
  }
  memcpy ??= koffi.load('libc.so.6').func('void *memcpy(void *target, void *source, size_t bytes)') as Memcpy;
  const chunk = Math.ceil(source.byteLength / CHUNKS / 64) * 64;
  const copies = Array.from({ length: CHUNKS }, (_, i) => {
    const [from, to] = [source, target].map((view) => view.subarray(i * chunk, (i + 1) * chunk));
    return new Promise<void>((resolve, reject) => {
      memcpy!.async(to, from, from.byteLength, (error: Error | null) => (error ? reject(error) : resolve()));
    });
  });
  await Promise.all(copies);
}
