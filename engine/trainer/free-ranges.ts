import { StudioError } from '../errors.ts';

interface FreeRange {
  readonly from: number;
  readonly to: number;
}

/** Bytes of the free ranges that a change ended and of those that it made. */
export interface FreeChange {
  readonly gone: readonly number[];
  readonly made: readonly number[];
}

const unchanged: FreeChange = { gone: [], made: [] };

/** The free ranges of one buffer, in ascending order, no two touching. */
export class FreeRanges {
  private readonly ranges: FreeRange[];

  constructor(bytes: number) {
    this.ranges = bytes > 0 ? [{ from: 0, to: bytes }] : [];
  }

  /** Bytes of each free range. */
  sizes(): number[] {
    return this.ranges.map(size);
  }

  /** Takes a range out of the free one that holds it. Throws StudioError `internal` when none does. */
  take(from: number, bytes: number): FreeChange {
    if (bytes === 0) return unchanged;
    const at = this.firstEndingAfter(from);
    const hole = this.ranges[at];
    const to = from + bytes;
    if (!hole || hole.from > from || hole.to < to)
      throw new StudioError('internal', `bytes ${from} to ${to} of a buffer are taken twice`);
    const rest = [
      { from: hole.from, to: from },
      { from: to, to: hole.to },
    ].filter((range) => size(range) > 0);
    this.ranges.splice(at, 1, ...rest);
    return { gone: [size(hole)], made: rest.map(size) };
  }

  /** Gives a taken range back and joins it with its free neighbours. */
  give(from: number, bytes: number): FreeChange {
    if (bytes === 0) return unchanged;
    const to = from + bytes;
    const next = this.firstEndingAfter(from);
    const joinsPrevious = next > 0 && this.ranges[next - 1].to === from;
    const joinsNext = next < this.ranges.length && this.ranges[next].from === to;
    const first = joinsPrevious ? next - 1 : next;
    const joined = {
      from: joinsPrevious ? this.ranges[first].from : from,
      to: joinsNext ? this.ranges[next].to : to,
    };
    const gone = this.ranges.splice(first, Number(joinsPrevious) + Number(joinsNext), joined);
    return { gone: gone.map(size), made: [size(joined)] };
  }

  /** Index of the first free range that ends after `offset`. */
  private firstEndingAfter(offset: number): number {
    let [low, high] = [0, this.ranges.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.ranges[middle].to > offset) high = middle;
      else low = middle + 1;
    }
    return low;
  }
}

function size({ from, to }: FreeRange): number {
  return to - from;
}
