/**
 * Random bits by position: 32 bits for each index of a stream, any of them by itself, the same in TypeScript and in WGSL.
 * A device counts to 2^32 only, so what lies above goes into the stream's key.
 */

/** A full-avalanche mixing of 32 bits (two multiply-xorshift rounds; constants of C. Wellons' hash prospector, lowbias32). */
export function mix(value: number): number {
  let x = value >>> 0;
  x = Math.imul(x ^ (x >>> 16), 0x7feb352d);
  x = Math.imul(x ^ (x >>> 15), 0x846ca68b);
  return (x ^ (x >>> 16)) >>> 0;
}

/** The key of the 2^32 indices from high × 2^32. */
export function streamKey(stream: number, high: number): number {
  return mix(stream + Math.imul(high, 0x9e3779b9));
}

/** 32 random bits for a position of a stream. */
export function hashAt(stream: number, index: number): number {
  return mix(streamKey(stream, Math.floor(index / 2 ** 32)) ^ (index >>> 0));
}

/** WGSL: `random_bits(index)`, which is mix(key ^ index), for kernels with the parameter `key`. */
export const randomBitsWgsl = `
fn random_bits(index: u32) -> u32 {
  var x = p.key ^ index;
  x = (x ^ (x >> 16u)) * 0x7feb352du;
  x = (x ^ (x >> 15u)) * 0x846ca68bu;
  return x ^ (x >> 16u);
}
`;
