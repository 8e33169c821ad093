import type { DcpChunk } from './dcp-metadata.ts';
import { elementCount } from './dtype.ts';

/** Pairs of chunks that are compared for one tensor; a grid of 8 × 512 ranks needs far fewer. */
const MAX_COMPARISONS = 4_000_000;

/** Whether a chunk holds whole rows: all of every dimension but the first. */
export function isRowChunk(shape: readonly number[], chunk: DcpChunk): boolean {
  return shape.every((size, dim) => dim === 0 || chunk.sizes[dim] === size);
}

/**
 * What is wrong with the chunks of a tensor, or undefined if they cover each element exactly once. Chunks of rows are
 * named by the rows that are missing, others by their number of elements. torch does not check this: it loads such a
 * tensor and leaves what is missing as it was.
 */
export function coverFault(shape: readonly number[], chunks: readonly DcpChunk[]): string | undefined {
  if (shape.includes(0)) return undefined;
  const held = chunks.filter(({ sizes }) => !sizes.includes(0));
  return held.every((chunk) => isRowChunk(shape, chunk)) ? rowFault(shape[0] ?? 1, held) : boxFault(shape, held);
}

function rowFault(rows: number, chunks: readonly DcpChunk[]): string | undefined {
  const ranges = chunks.map(({ offsets, sizes }) => [offsets[0] ?? 0, (offsets[0] ?? 0) + (sizes[0] ?? 1)]);
  ranges.sort((a, b) => a[0] - b[0]);
  let at = 0;
  for (const [first, end] of [...ranges, [rows, rows]]) {
    if (first > at) return `rows ${at} to ${first - 1} of ${rows} are in none of its chunks`;
    if (first < at) return `rows ${first} to ${Math.min(at, end) - 1} are in two of its chunks`;
    at = end;
  }
  return undefined;
}

/** Boxes that do not overlap and have as many elements as the tensor cover it. */
function boxFault(shape: readonly number[], chunks: readonly DcpChunk[]): string | undefined {
  const ordered = [...chunks].sort((a, b) => a.offsets[0] - b.offsets[0]);
  let comparisons = 0;
  for (const [i, chunk] of ordered.entries()) {
    const end = chunk.offsets[0] + chunk.sizes[0];
    for (let j = i + 1; j < ordered.length && ordered[j].offsets[0] < end; j++) {
      if (++comparisons > MAX_COMPARISONS) return `it has ${chunks.length} chunks, too many to check`;
      if (overlap(chunk, ordered[j])) {
        return `its chunks at [${chunk.offsets}] and [${ordered[j].offsets}] overlap`;
      }
    }
  }
  const covered = chunks.reduce((sum, { sizes }) => sum + elementCount(sizes), 0);
  const all = elementCount(shape);
  return covered < all ? `${all - covered} of its ${all} elements are in none of its chunks` : undefined;
}

function overlap(a: DcpChunk, b: DcpChunk): boolean {
  return a.offsets.every((offset, dim) => {
    const other = b.offsets[dim];
    return offset < other + b.sizes[dim] && other < offset + a.sizes[dim];
  });
}
