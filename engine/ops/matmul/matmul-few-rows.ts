import type { TiledVariant } from '../kernel.ts';
import { type SpreadRowsShape, spreadRowsVariant } from './matmul-few-rows-spread.ts';
import { storeWgsl } from './matmul-store.ts';

/** Up to so many rows, the bytes of the weight take the time and not the arithmetic. */
const FEW_ROWS = 64;
/** So many columns give every multiprocessor of a large GPU a workgroup of a wide shape. */
const WIDE_FROM = 2048;

const base = { threads: 256, rowLanes: 4, rows: 9, columns: 8, columnWarps: 1, unroll: 1, quads: 3, parts: 1 };
const WIDE: SpreadRowsShape = { ...base, columnLanes: 4, ahead: 1, aheadA: true };
const NARROW: SpreadRowsShape = { ...base, columnLanes: 1, ahead: 1, aheadA: true };

/** Variants for products with few rows (nt, nn): a workgroup has up to 36 rows of a few columns, so that a weight is fetched once. */
export function fewRowsVariants(layout: 'nt' | 'nn', bias: boolean, store: string = storeWgsl(bias)): TiledVariant[] {
  const few = (shape: SpreadRowsShape, leastColumns: number): TiledVariant => {
    const variant = spreadRowsVariant(layout, store, shape);
    return {
      ...variant,
      fits: (params) => params.M <= FEW_ROWS && params.N >= leastColumns && variant.fits(params),
    };
  };
  return [few(WIDE, WIDE_FROM), few(NARROW, 0)];
}
