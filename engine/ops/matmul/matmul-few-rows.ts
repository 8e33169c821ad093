import type { TiledVariant } from '../kernel.ts';
import type { Lanes } from './few-rows-sums.ts';
import { type PanelShape, panelVariant } from './matmul-few-rows-panel.ts';
import { spreadRowsVariant } from './matmul-few-rows-spread.ts';
import { storeWgsl } from './matmul-store.ts';

/** Up to so many rows, the bytes of the weight take the time and not the arithmetic. */
const FEW_ROWS = 64;
/** So many columns give every multiprocessor of a large GPU a workgroup of a wide shape. */
const WIDE_FROM = 2560;

/** 36 rows and 32 columns a workgroup, two stages of 96 products on their way: the most bytes at once. */
export const WIDE_PANEL: PanelShape = {
  rowLanes: 4,
  columnLanes: 8,
  rows: 9,
  columns: 4,
  depth: 24,
  ahead: 2,
  parts: 1,
};
const NARROW: Lanes = { rowLanes: 4, columnLanes: 1, rows: 9, columns: 8 };
const WIDE: Lanes = { rowLanes: 4, columnLanes: 4, rows: 9, columns: 8 };

/**
 * Variants for products with few rows (nt, nn): a workgroup has up to 36 rows of a few columns, so that a weight is fetched
 * once. The first that fits is the default; the last is there for adapters on which it is faster.
 */
export function fewRowsVariants(
  layout: 'nt' | 'nn',
  bias: boolean,
  store: string = storeWgsl(bias),
): readonly [wide: TiledVariant, narrow: TiledVariant, other: TiledVariant] {
  const few = (variant: TiledVariant, leastColumns: number): TiledVariant => ({
    ...variant,
    fits: (params) => params.M <= FEW_ROWS && params.N >= leastColumns && variant.fits(params),
  });
  return [
    few(panelVariant(layout, store, WIDE_PANEL), WIDE_FROM),
    few(spreadRowsVariant(layout, store, NARROW), 0),
    few(spreadRowsVariant(layout, store, WIDE), WIDE_FROM),
  ];
}
