import type { TiledVariant } from '../kernel.ts';
import type { Lanes } from './few-rows-sums.ts';
import { spreadRowsVariant } from './matmul-few-rows-spread.ts';
import { type StreamShape, streamVariant } from './matmul-few-rows-stream.ts';
import { storeWgsl } from './matmul-store.ts';

/** Up to so many rows, the bytes of the weight take the time and not the arithmetic. */
const FEW_ROWS = 64;

const whole = { threads: 256, parts: 1 } as const;
/** 36 rows and so many columns a workgroup, by how many give each multiprocessor of a large GPU a workgroup. */
const COLUMNS_64: StreamShape = {
  ...whole,
  ...{ rowLanes: 2, columnLanes: 8, columnWarps: 2, rows: 18, columns: 4, turns: 4, ahead: 4 },
};
const COLUMNS_32: StreamShape = { ...COLUMNS_64, columnWarps: 1, turns: 3, ahead: 3 };
const COLUMNS_24: StreamShape = { ...COLUMNS_32, columns: 3 };
const COLUMNS_16: StreamShape = {
  ...whole,
  ...{ rowLanes: 4, columnLanes: 4, columnWarps: 1, rows: 9, columns: 4, turns: 2, ahead: 4 },
};
/** 18 rows and 16 columns: each workgroup reads half of a, and each weight twice. */
const HALF: StreamShape = {
  ...whole,
  ...{ rowLanes: 2, columnLanes: 4, columnWarps: 1, rows: 9, columns: 4, turns: 3, ahead: 3 },
};
const NARROW: Lanes = { rowLanes: 4, columnLanes: 1, rows: 9, columns: 8 };

/** What sums of few columns in parts take. */
export const PARTS_SHAPE: StreamShape = { ...COLUMNS_64, parts: 8 };

/**
 * Variants for products with few rows (nt, nn): a workgroup has up to 36 rows of a few columns, so that a weight is fetched
 * once. The first that fits is the default; the last fits all that have few rows.
 */
export function fewRowsVariants(
  layout: 'nt' | 'nn',
  bias: boolean,
  store: string = storeWgsl(bias),
): readonly TiledVariant[] {
  const few = (variant: TiledVariant, leastColumns: number): TiledVariant => ({
    ...variant,
    fits: (params) => params.M <= FEW_ROWS && params.N >= leastColumns && variant.fits(params),
  });
  const stream = (shape: StreamShape, leastColumns: number) => few(streamVariant(layout, store, shape), leastColumns);
  return [
    ...(layout === 'nt'
      ? [stream(COLUMNS_64, 8192), stream(COLUMNS_32, 3200), stream(COLUMNS_24, 2116), stream(COLUMNS_16, 1536)]
      : [stream(COLUMNS_32, 2560), stream(HALF, 0)]),
    few(spreadRowsVariant(layout, store, NARROW), 0),
  ];
}
