/**
 * IEEE half-precision numbers, stored two to a u32, the one of even index in the low 16 bits: a form that every adapter
 * reads and writes, with or without shader-f16. Rounding is to nearest, ties to even; 65520 and beyond is infinite.
 */

const value = new Float32Array(1);
const valueBits = new Uint32Array(value.buffer);

/** The 16 bits of the half nearest to x. */
export function halfBits(x: number): number {
  value[0] = x;
  const bits = valueBits[0];
  const sign = (bits >>> 16) & 0x8000;
  const magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;
  if (magnitude >= 0x477ff000) return sign | 0x7c00;
  if (magnitude < 0x38800000) {
    // Below 2^−14 halves are multiples of 2^−24, as are the numbers from 0.5 to 1: adding 0.5 rounds.
    valueBits[0] = magnitude;
    value[0] += 0.5;
    return sign | (valueBits[0] - 0x3f000000);
  }
  const odd = (magnitude >>> 13) & 1;
  return sign | ((magnitude - 0x38000000 + 0xfff + odd) >>> 13);
}

let table: Float32Array | null = null;

/** The value of each of the 65,536 halves. */
function halfValues(): Float32Array {
  table ??= Float32Array.from({ length: 65_536 }, (_, half) => {
    const sign = half & 0x8000 ? -1 : 1;
    const exponent = (half >>> 10) & 31;
    const fraction = half & 0x3ff;
    if (exponent === 31) return fraction ? Number.NaN : sign * Number.POSITIVE_INFINITY;
    return sign * (exponent ? (1024 + fraction) * 2 ** (exponent - 25) : fraction * 2 ** -24);
  });
  return table;
}

/** The half nearest to x, as a number. */
export function roundToHalf(x: number): number {
  return halfValues()[halfBits(x)];
}

/** Words that hold n halves. */
export function halfWords(n: number): number {
  return Math.ceil(n / 2);
}

/** Numbers as halves; an odd last one is followed by 0. */
export function packHalves(values: Float32Array): Uint32Array<ArrayBuffer> {
  const words = new Uint32Array(halfWords(values.length));
  for (let i = 0; i < values.length; i++) words[i >> 1] |= halfBits(values[i]) << (16 * (i & 1));
  return words;
}

/** The first `count` of the halves in `words`. */
export function unpackHalves(words: Uint32Array, count: number = 2 * words.length): Float32Array<ArrayBuffer> {
  const values = halfValues();
  const unpacked = new Float32Array(count);
  for (let i = 0; i < count; i++) unpacked[i] = values[(words[i >> 1] >>> (16 * (i & 1))) & 0xffff];
  return unpacked;
}

/**
 * WGSL: `halfOf(x)`, the 16 bits of the half nearest to x, and `ofHalf(half)`, their value. By their bits: what pack2x16float
 * makes of a number beyond its range is not said, and a device may assume that no number is infinite.
 */
export const halfWgsl = `
fn halfOf(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  let sign = (bits >> 16u) & 0x8000u;
  let magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) { return sign | 0x7e00u; }
  if (magnitude >= 0x477ff000u) { return sign | 0x7c00u; }
  if (magnitude < 0x38800000u) { return sign | (bitcast<u32>(bitcast<f32>(magnitude) + 0.5) - 0x3f000000u); }
  return sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13u) & 1u)) >> 13u);
}
fn ofHalf(half: u32) -> f32 {
  let sign = (half & 0x8000u) << 16u;
  let magnitude = (half & 0x7fffu) << 13u;
  if (magnitude >= 0x0f800000u) { return bitcast<f32>(sign | magnitude | 0x7f800000u); }
  if (magnitude < 0x00800000u) {
    let small = f32(half & 0x3ffu) * 5.9604644775390625e-8;
    return bitcast<f32>(sign | bitcast<u32>(small));
  }
  return bitcast<f32>(sign | (magnitude + 0x38000000u));
}
`;
