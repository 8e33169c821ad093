import { CONTROL } from '../control.ts';
import type { ParamSpec, Params, View } from '../kernel.ts';

/**
 * Which masks a run drops with; a checkpoint records it. 1: two rounds of mixing an element, of versions that recorded none.
 * 2: what is here.
 */
export const MASK_VERSION = 2;

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

/** What a site's masks are made from beside the step: 64 bits, so that no two sites or steps have the same. */
export function maskKeys(
  seed: number,
  rank: number,
  site: number,
): { readonly maskKey0: number; readonly maskKey1: number } {
  const key = (start: number) => mix(mix(mix(start) + rank) + site);
  return { maskKey0: key(seed), maskKey1: key(seed ^ 0x9e3779b9) };
}

/** The parameters of a kernel that drops: p, 0 ≤ p < 1, taken as float32, and its site's keys. */
export const dropoutParams: readonly ParamSpec[] = [
  { name: 'dropout', type: 'f32' },
  { name: 'maskKey0', type: 'u32' },
  { name: 'maskKey1', type: 'u32' },
];

/** The mask of one site in the step that `control` holds. */
export function dropoutMask(control: View, { dropout, maskKey0, maskKey1 }: Params): DropoutMask {
  const step = new Uint32Array(control.buffer, control.byteOffset, control.length)[CONTROL.step];
  return {
    key0: mix(maskKey0 + step),
    key1: mix(maskKey1 + step),
    // p·2^32 is exact in float32: the device computes the same integer.
    threshold: Math.trunc(Math.fround(dropout) * 2 ** 32),
    scale: dropoutScale(dropout),
  };
}

/** What is kept is multiplied by: 1/(1 − p) in float32. */
export function dropoutScale(p: number): number {
  return Math.fround(1 / Math.fround(1 - Math.fround(p)));
}

/** Three products with the keys before and between; its upper bits, which decide, depend on all of `index`. */
export function maskHash({ key0, key1 }: DropoutMask, index: number): number {
  let x = Math.imul(index + key0, 0x7feb352d);
  x = Math.imul(x ^ (x >>> 16) ^ key1, 0x846ca68b);
  return Math.imul(x ^ (x >>> 15), 0x21f0aaad) >>> 0;
}

/** What element `index` (u32) is multiplied by: 0 or 1/(1 − p). */
export function dropoutFactor(mask: DropoutMask, index: number): number {
  return maskHash(mask, index) >= mask.threshold ? mask.scale : 0;
}

/** The same in WGSL, for kernels with an operand `control` and the parameters above. */
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
  return DropoutMask(mix_bits(p.maskKey0 + step), mix_bits(p.maskKey1 + step), u32(p.dropout * 4294967296.0), 1.0 / (1.0 - p.dropout));
}
fn mask_hash(mask: DropoutMask, index: u32) -> u32 {
  var x = (index + mask.key0) * 0x7feb352du;
  x = (x ^ (x >> 16u) ^ mask.key1) * 0x846ca68bu;
  return (x ^ (x >> 15u)) * 0x21f0aaadu;
}
fn dropout_factor(mask: DropoutMask, index: u32) -> f32 {
  return select(0.0, mask.scale, mask_hash(mask, index) >= mask.threshold);
}
`;
