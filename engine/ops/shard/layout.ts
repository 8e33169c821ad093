import { StudioError } from '../../errors.ts';

/**
 * How a unit's parameters lie in a rank's shard and in the gathered (full) unit. Each parameter is split along dimension 0
 * into chunks of ceil(rows / world) rows, as DTensor's Shard(0) does: the last ranks may hold fewer rows, or none. A chunk
 * is reserved whole on every rank, so all shards are equally long; what is reserved and not held is zero.
 */

export interface ShardParameter {
  readonly name: string;
  /** Size of dimension 0; a scalar has one row. */
  readonly rows: number;
  /** Elements of a row; 1 for a 1-D parameter. */
  readonly rowLength: number;
  /** First row of this parameter in the norm's order of all the model's rows. Left out: after those of the parameter before. */
  readonly rowStart?: number;
}

/** Offsets and lengths in elements. */
export interface ShardSegment {
  readonly name: string;
  readonly shardOffset: number;
  readonly chunkRows: number;
  readonly rowLength: number;
  readonly rows: number;
  readonly fullOffset: number;
  readonly rowStart: number;
  /** Rows reserved in this shard by the segments before. */
  readonly localRowStart: number;
}

export interface ShardLayout {
  readonly world: number;
  /** In ascending order of shardOffset and of fullOffset. */
  readonly segments: readonly ShardSegment[];
  /** Length of each rank's shard, padding included. */
  readonly shardElements: number;
  /** Length of the gathered unit, padding included. */
  readonly fullElements: number;
  /** Rows reserved in each shard: the length of the row sums of a norm. */
  readonly localRows: number;
}

/** Columns of the segment table that the shard and norm kernels read, in this order. */
export const SEGMENT_COLUMNS = 7;

/** Elements to which each segment is aligned: 16 bytes. */
export const SEGMENT_ALIGN_ELEMENTS = 4;

function alignUp(value: number, multiple: number): number {
  return Math.ceil(value / multiple) * multiple;
}

function positive(value: number, what: string): number {
  if (!Number.isInteger(value) || value < 1) throw new RangeError(`${what} must be a whole number of at least 1`);
  return value;
}

/**
 * Lays out parameters, in this order, over `world` shards. Segments start on multiples of `alignElements` in the shard and
 * of `fullAlignElements` in the full unit, and each is padded to a multiple of it. Throws RangeError for a size that is not a positive whole
 * number, StudioError `invalid-config` when the full unit or the shard has 2^32 elements or more (indices are u32).
 */
export function shardLayout(
  parameters: readonly ShardParameter[],
  world: number,
  alignElements: number = SEGMENT_ALIGN_ELEMENTS,
  fullAlignElements: number = alignElements,
): ShardLayout {
  positive(world, 'world');
  positive(alignElements, 'alignElements');
  positive(fullAlignElements, 'fullAlignElements');
  let shardOffset = 0;
  let fullOffset = 0;
  let rowStart = 0;
  let localRowStart = 0;
  const segments = parameters.map((parameter): ShardSegment => {
    const rows = positive(parameter.rows, `rows of ${parameter.name}`);
    const rowLength = positive(parameter.rowLength, `rowLength of ${parameter.name}`);
    const chunkRows = Math.ceil(rows / world);
    if (parameter.rowStart !== undefined) rowStart = parameter.rowStart;
    const segment = {
      name: parameter.name,
      shardOffset,
      chunkRows,
      rowLength,
      rows,
      fullOffset,
      rowStart,
      localRowStart,
    };
    shardOffset += alignUp(chunkRows * rowLength, alignElements);
    fullOffset += alignUp(rows * rowLength, fullAlignElements);
    rowStart += rows;
    localRowStart += chunkRows;
    return segment;
  });
  if (Math.max(shardOffset, fullOffset) >= 2 ** 32) {
    throw new StudioError(
      'invalid-config',
      `a unit of ${fullOffset} elements is over the 2^32 that a kernel can index. Wrap smaller units ` +
        '(strategy.autoWrapPolicy), or take a smaller model',
      { elements: fullOffset },
    );
  }
  return { world, segments, shardElements: shardOffset, fullElements: fullOffset, localRows: localRowStart };
}

/** The rows of a parameter that a rank holds. Past the last row: `{ first: rows, count: 0 }`. */
export function rowsOf(segment: ShardSegment, rank: number): { readonly first: number; readonly count: number } {
  const first = Math.min(rank * segment.chunkRows, segment.rows);
  return { first, count: Math.min(segment.chunkRows, segment.rows - first) };
}

/** The table that the kernels read: a row of SEGMENT_COLUMNS u32 per segment. */
export function shardTable(layout: ShardLayout): Uint32Array<ArrayBuffer> {
  const table = new Uint32Array(layout.segments.length * SEGMENT_COLUMNS);
  layout.segments.forEach((s, i) => {
    table.set(
      [s.shardOffset, s.chunkRows, s.rowLength, s.rows, s.fullOffset, s.rowStart, s.localRowStart],
      i * SEGMENT_COLUMNS,
    );
  });
  return table;
}

/**
 * The layout of the row sums of a norm: each rank's vector of `localRows` sums is a shard of it, and `unshard` with its
 * table puts every rank's sums at their place in the norm's one order of rows.
 */
export function rowSumLayout(layout: ShardLayout): ShardLayout {
  const segments = layout.segments.map((s) => ({
    ...s,
    shardOffset: s.localRowStart,
    rowLength: 1,
    fullOffset: s.rowStart,
  }));
  const fullElements = segments.reduce((end, s) => Math.max(end, s.fullOffset + s.rows), 0);
  return { ...layout, segments, shardElements: layout.localRows, fullElements };
}
