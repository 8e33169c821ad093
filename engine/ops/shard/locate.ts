import { stridedThreads, stridedWgsl } from '../strided.ts';
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

/** WGSL over `table` and the parameter `segments`: the segment that holds element e of a shard. */
const segmentOfWgsl = `
fn segmentOf(e: u32) -> u32 {
  var low = 0u;
  var high = p.segments;
  while (high - low > 1u) {
    let middle = (low + high) / 2u;
    if (table[middle * ${SEGMENT_COLUMNS}u] <= e) { low = middle; } else { high = middle; }
  }
  return low;
}
`;

/**
 * WGSL over the same, and `begin` and `count`, declaring `spanAt(e, rank)`: the part of the range that is in e's segment
 * and ends at `end`, of which the rank holds `first` … `heldEnd`; `shift` takes an index of the shard to one of the full unit.
 */
export const spanAtWgsl = `${segmentOfWgsl}
struct Span { first: u32, heldEnd: u32, end: u32, shift: u32 }
fn spanAt(e: u32, rank: u32) -> Span {
  let s = segmentOf(e);
  let t = s * ${SEGMENT_COLUMNS}u;
  let last = p.begin + p.count;
  var end = last;
  if (s + 1u < p.segments) { end = min(last, table[t + ${SEGMENT_COLUMNS}u]); }
  let firstRow = min(rank * table[t + 1u], table[t + 3u]);
  let held = min(table[t + 1u], table[t + 3u] - firstRow) * table[t + 2u];
  let shift = table[t + 4u] + firstRow * table[t + 2u] - table[t];
  return Span(max(p.begin, table[t]), min(last, table[t] + held), end, shift);
}
`;

/** Elements of a thread: enough to pay for finding the segment of the first. */
export const SHARD_ELEMENTS_PER_THREAD = 16;

/** Threads that cover `count` elements with `walkShardWgsl`. */
export function walkShardThreads(count: number): number {
  return stridedThreads(count, SHARD_ELEMENTS_PER_THREAD);
}

/**
 * WGSL over an operand `table` and the parameters `segments`, `begin` and `count`, declaring
 * `fn walkShard(i: u32, rank: u32, context: u32)`, which thread i of `walkShardThreads(count)` calls: it calls
 * `held(at, place, context)` for each of its elements that the rank holds, `place` its index in the full unit, and
 * `padding(at, context)` for the others; `at` counts from `begin`.
 */
export const walkShardWgsl = `${stridedWgsl(SHARD_ELEMENTS_PER_THREAD)}${segmentOfWgsl}
fn walkShard(i: u32, rank: u32, context: u32) {
  let last = p.begin + min(p.count, stridedEnd(i));
  var e = p.begin + stridedFirst(i);
  while (e < last) {
    let s = segmentOf(e);
    let t = s * ${SEGMENT_COLUMNS}u;
    let shardOffset = table[t];
    let chunkRows = table[t + 1u];
    let rowLength = table[t + 2u];
    let rows = table[t + 3u];
    let first = min(rank * chunkRows, rows);
    let heldEnd = min(last, shardOffset + min(chunkRows, rows - first) * rowLength);
    var end = last;
    if (s + 1u < p.segments) { end = min(last, table[t + ${SEGMENT_COLUMNS}u]); }
    // May wrap below 0, and back when e is added.
    let shift = table[t + 4u] + first * rowLength - shardOffset;
    for (; e < heldEnd; e += STRIDE) { held(e - p.begin, e + shift, context); }
    for (; e < end; e += STRIDE) { padding(e - p.begin, context); }
  }
}
`;
