import type { ByteSink } from './byte-source.ts';

const BUFFER_BYTES = 1024 * 1024;

/** A sink that must be flushed at the end. */
export interface BufferedSink extends ByteSink {
  flush(): Promise<void>;
}

/**
 * Gathers small chunks, so that the thousands of small records of a rank file are not as many calls of the system. Large
 * chunks pass through. An error of the inner sink comes out of a later `write` or of `flush`.
 */
export function bufferedSink(inner: ByteSink): BufferedSink {
  let buffer = new Uint8Array(BUFFER_BYTES);
  let used = 0;
  const flush = async (): Promise<void> => {
    if (used === 0) return;
    const full = buffer.subarray(0, used);
    used = 0;
    buffer = new Uint8Array(BUFFER_BYTES);
    await inner.write(full);
  };
  return {
    async write(chunk) {
      if (used + chunk.length > BUFFER_BYTES) await flush();
      if (chunk.length > BUFFER_BYTES / 2) {
        await flush();
        await inner.write(chunk);
        return;
      }
      buffer.set(chunk, used);
      used += chunk.length;
    },
    flush,
    crc32: inner.crc32,
  };
}
