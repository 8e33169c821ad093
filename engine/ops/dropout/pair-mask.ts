import { type DropoutMask, dropoutWgsl, maskHash } from './dropout-mask.ts';

/**
 * Of a matrix of `rows` × columns, such as attention's, the mask costs a product an element: its hash is m·k + a, with m (odd)
 * and a of its row and k of its column, all random, and so any two elements are independent (multiply-shift hashing, Dietzfelbinger
 * 1996). Rows and columns are numbered below 2^30 over all matrices of the site.
 */
export interface PairMask {
  readonly multipliers: Int32Array;
  readonly addends: Int32Array;
  readonly columns: Int32Array;
  readonly threshold: number;
  readonly scale: number;
}

/** The masks of `count` rows and as many columns, from number `first` on. */
export function pairMask(mask: DropoutMask, first: number, count: number): PairMask {
  const key = (index: number) => {
    const x = maskHash(mask, index);
    return x ^ (x >>> 16);
  };
  const keys = (of: (i: number) => number) => Int32Array.from({ length: count }, (_, i) => of(first + i));
  return {
    multipliers: keys((row) => key(2 * row) | 1),
    addends: keys((row) => key(2 * row + 1)),
    columns: keys((column) => key(2 ** 31 + column)),
    threshold: mask.threshold,
    scale: mask.scale,
  };
}

/** What the element of a row and a column of `mask` is multiplied by: 0 or 1/(1 − p). */
export function pairFactor(mask: PairMask, row: number, column: number): number {
  const pair = (Math.imul(mask.multipliers[row], mask.columns[column]) + mask.addends[row]) >>> 0;
  return pair >= mask.threshold ? mask.scale : 0;
}

/** The same in WGSL, with `dropoutWgsl`: `pair_row` is (m, a) of a row, `pair_column` k of a column. */
export const pairMaskWgsl = `${dropoutWgsl}
fn pair_key(mask: DropoutMask, index: u32) -> u32 {
  let x = mask_hash(mask, index);
  return x ^ (x >> 16u);
}
fn pair_row(mask: DropoutMask, row: u32) -> vec2u {
  return vec2u(pair_key(mask, 2u * row) | 1u, pair_key(mask, 2u * row + 1u));
}
fn pair_column(mask: DropoutMask, column: u32) -> u32 { return pair_key(mask, 0x80000000u + column); }
fn pair_kept(mask: DropoutMask, row: vec2u, column: u32) -> bool { return row.x * column + row.y >= mask.threshold; }
fn pair_factor(mask: DropoutMask, row: vec2u, column: u32) -> f32 {
  return select(0.0, mask.scale, pair_kept(mask, row, column));
}
`;
