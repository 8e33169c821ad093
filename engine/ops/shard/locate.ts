import { SEGMENT_COLUMNS } from './layout.ts';

/** A run of elements that a rank holds, contiguous in the range asked for and in the full unit. */
export interface HeldSpan {
  /** First element, from the beginning of the range. */
  readonly at: number;
  readonly length: number;
  readonly fullIndex: number;
}

/** The runs that `rank` holds among its shard's elements begin … begin + count − 1. What they leave out is padding. */
export function heldSpans(
  table: Uint32Array,
  segments: number,
  begin: number,
  count: number,
  rank: number,
): readonly HeldSpan[] {
  const spans: HeldSpan[] = [];
  for (let s = 0; s < segments; s++) {
    const [shardOffset, chunkRows, rowLength, rows, fullOffset] = table.subarray(
      s * SEGMENT_COLUMNS,
      (s + 1) * SEGMENT_COLUMNS,
    );
    const first = Math.min(rank * chunkRows, rows);
    const held = Math.min(chunkRows, rows - first) * rowLength;
    const from = Math.max(begin, shardOffset);
    const to = Math.min(begin + count, shardOffset + held);
    if (from >= to) continue;
    spans.push({ at: from - begin, length: to - from, fullIndex: fullOffset + first * rowLength + from - shardOffset });
  }
  return spans;
}

/**
 * WGSL over an operand `table` and a parameter `segments`. `segmentOf(e)`: the segment of shard element e. `segmentFrom(s, e)`:
 * the same, known to be s or after it. `placeOf(s, e, rank)`: the index in the full unit of that element of a rank's shard,
 * NOWHERE if it is padding.
 */
export const locateWgsl = `
const NOWHERE = 0xffffffffu;
fn segmentOf(e: u32) -> u32 {
  var low = 0u;
  var high = p.segments;
  while (high - low > 1u) {
    let middle = (low + high) / 2u;
    if (table[middle * ${SEGMENT_COLUMNS}u] <= e) { low = middle; } else { high = middle; }
  }
  return low;
}
fn segmentFrom(known: u32, e: u32) -> u32 {
  var s = known;
  while (s + 1u < p.segments && table[(s + 1u) * ${SEGMENT_COLUMNS}u] <= e) { s++; }
  return s;
}
fn placeOf(s: u32, e: u32, rank: u32) -> u32 {
  let t = s * ${SEGMENT_COLUMNS}u;
  let rows = table[t + 3u];
  let first = min(rank * table[t + 1u], rows);
  let rowLength = table[t + 2u];
  let within = e - table[t];
  if (within >= min(table[t + 1u], rows - first) * rowLength) { return NOWHERE; }
  return table[t + 4u] + first * rowLength + within;
}
`;
