import koffi from 'koffi';

const known = new Map<bigint, ArrayBuffer>();

/**
 * The `bytes` of memory that begin where a mapped range of a GPU buffer does; the buffer must be at least as long, and mapped
 * while the view is used. V8 counts the bytes of each range that is mapped as allocated and collects garbage after every
 * 64 MiB of them, hundreds of times a step; so only a few bytes are mapped as a range, and the view is made once: the
 * driver maps a buffer to one place for its life.
 */
export function mappedView(start: ArrayBuffer, bytes: number): Uint8Array<ArrayBuffer> {
  const address = koffi.address(start);
  let memory = known.get(address);
  if (!memory || memory.byteLength < bytes) {
    memory = koffi.view(address, bytes);
    known.set(address, memory);
  }
  return new Uint8Array(memory, 0, bytes);
}
