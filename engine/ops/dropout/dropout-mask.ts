import { CONTROL } from '../control.ts';
import type { ParamSpec, View } from '../kernel.ts';

/**
 * Dropout's mask is a function of (seed, step, rank, site, element): nothing is stored, backward and recomputation ask again.
 * `site` numbers the dropouts of a model. An element is kept if its hash is at least p·2^32, and scaled by 1/(1 − p).
 */
export interface DropoutMask {
  readonly key0: number;
  readonly key1: number;
  readonly threshold: number;
  readonly scale: number;
}

/** A bijection of 32-bit integers in which every input bit moves about half of the output bits. */
function mix(x: number): number {
  x = Math.imul(x ^ (x >>> 16), 0x7feb352d);
  x = Math.imul(x ^ (x >>> 15), 0x846ca68b);
  return (x ^ (x >>> 16)) >>> 0;
}

/** The mask of one site in the step that `control` holds; `dropout` is p, 0 ≤ p < 1, taken as float32. */
export function dropoutMask(control: View, dropout: number, seed: number, site: number, rank: number): DropoutMask {
  const step = new Uint32Array(control.buffer, control.byteOffset, control.length)[CONTROL.step];
  const p = Math.fround(dropout);
  const key0 = mix(mix(mix(mix(seed) + step) + rank) + site);
  return {
    key0,
    key1: mix(key0 + 0x9e3779b9),
    // p·2^32 is exact in float32: the device computes the same integer.
    threshold: Math.trunc(p * 2 ** 32),
    scale: dropoutScale(p),
  };
}

/** What is kept is multiplied by: 1/(1 − p) in float32. */
export function dropoutScale(p: number): number {
  return Math.fround(1 / Math.fround(1 - Math.fround(p)));
}

/** The parameters of a kernel that drops. */
export const dropoutParams: readonly ParamSpec[] = [
  { name: 'dropout', type: 'f32' },
  { name: 'seed', type: 'u32' },
  { name: 'site', type: 'u32' },
  { name: 'rank', type: 'u32' },
];

/** What element `index` (u32) is multiplied by: 0 or 1/(1 − p). */
export function dropoutFactor(mask: DropoutMask, index: number): number {
  const hash = mix(mix(index + mask.key0) ^ mask.key1);
  return hash >= mask.threshold ? mask.scale : 0;
}

/** The same in WGSL, for kernels with an operand `control` and parameters dropout, seed, site and rank. */
export const dropoutWgsl = `
fn mix_bits(v: u32) -> u32 {
  var x = v;
  x = (x ^ (x >> 16u)) * 0x7feb352du;
  x = (x ^ (x >> 15u)) * 0x846ca68bu;
  return x ^ (x >> 16u);
}
struct DropoutMask { key0: u32, key1: u32, threshold: u32, scale: f32 }
fn dropout_mask() -> DropoutMask {
  let step = bitcast<u32>(control[${CONTROL.step}]);
  let key0 = mix_bits(mix_bits(mix_bits(mix_bits(p.seed) + step) + p.rank) + p.site);
  return DropoutMask(key0, mix_bits(key0 + 0x9e3779b9u), u32(p.dropout * 4294967296.0), 1.0 / (1.0 - p.dropout));
}
fn dropout_factor(mask: DropoutMask, index: u32) -> f32 {
  let hash = mix_bits(mix_bits(index + mask.key0) ^ mask.key1);
  return select(0.0, mask.scale, hash >= mask.threshold);
}
`;
