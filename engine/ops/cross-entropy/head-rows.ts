const MiB = 2 ** 20;
/** Logits up to this size are made at once. */
const LARGE_BYTES = 64 * MiB;
/** Rows that a piece has before pieces are made equal: with fewer, passing over the weight's gradient costs as much as its product. */
const LEAST_ROWS = 512;
/** Rows of a tile of the products. */
const TILE_ROWS = 128;

/**
 * Of how many rows the head makes its logits at a time: all R, or, where their bytes are large (`stride` floats a row), whole
 * tiles of some 512 rows or about 64 MiB, the pieces of nearly equal size. A function of shapes alone, so that every
 * rank, strategy and adapter adds the weight's gradient in the same order.
 */
export function headRows(R: number, stride: number): number {
  const rowBytes = 4 * stride;
  if (R * rowBytes <= LARGE_BYTES) return R;
  const wanted = TILE_ROWS * Math.round(Math.max(LEAST_ROWS, LARGE_BYTES / rowBytes) / TILE_ROWS);
  const pieces = Math.ceil(R / wanted);
  return Math.min(R, TILE_ROWS * Math.ceil(R / pieces / TILE_ROWS));
}
