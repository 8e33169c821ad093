import { packHalves, unpackHalves } from '../ops/half/half.ts';
import type { Range, Tensor } from './schedule.ts';

/**
 * State tensors are read and written between steps as float32, by offsets in bytes of float32, whatever they are stored as.
 * Of a tensor of halves a caller writes from an even element on.
 */

/** Where such a part of a tensor really lies: whole words. */
export function storedRange({ id, halves }: Tensor, offsetBytes: number, bytes: number): Range {
  if (!halves) return { tensor: id, offsetBytes, bytes };
  const from = Math.floor(offsetBytes / 8) * 4;
  return { tensor: id, offsetBytes: from, bytes: Math.ceil((offsetBytes + bytes) / 8) * 4 - from };
}

/** What is written there. */
export function asStored<T extends Float32Array<ArrayBuffer> | Uint32Array<ArrayBuffer>>(
  { halves, name }: Tensor,
  offsetBytes: number,
  data: T,
): T | Uint32Array<ArrayBuffer> {
  if (!halves || data instanceof Uint32Array) return data;
  if (offsetBytes % 8) throw new RangeError(`${name}: a write begins in the middle of a word of halves`);
  return packHalves(data);
}

/** The floats among the words that were read there. */
export function fromStored(
  { halves }: Tensor,
  offsetBytes: number,
  bytes: number,
  words: Float32Array<ArrayBuffer>,
): Float32Array<ArrayBuffer> {
  if (!halves) return words;
  const first = (offsetBytes / 4) % 2;
  const floats = unpackHalves(new Uint32Array(words.buffer, words.byteOffset, words.length));
  return floats.slice(first, first + bytes / 4);
}
