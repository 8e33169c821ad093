import { describe, expect, test } from 'vitest';
import { CONTROL_ELEMENTS } from '../control.ts';
import { setStep } from './dropout.cases.ts';
import { dropout } from './dropout.ts';
import { dropoutFactor, dropoutMask, maskKeys } from './dropout-mask.ts';
import { pairFactor, pairMask } from './pair-mask.ts';

/** Rows and columns of each mask here, as wide as the sequences that the kernels are made for. */
const SIDE = 256;
const n = SIDE * SIDE;
/** Bound of every statistic, in standard deviations of what it is for independent elements. */
const BOUND = 4;

interface Place {
  readonly step?: number;
  readonly seed?: number;
  readonly site?: number;
  readonly rank?: number;
  /** Which matrix of the site. */
  readonly head?: number;
}

function maskAt(p: number, { step = 0, seed = 1, site = 0, rank = 0 }: Place) {
  const control = new Float32Array(CONTROL_ELEMENTS);
  setStep(control, step);
  return dropoutMask(control, { dropout: p, ...maskKeys(seed, rank, site) });
}

/** 1 for each element that is kept, row by row. */
const kinds = {
  elements(p: number, place: Place = {}): Uint8Array {
    const mask = maskAt(p, place);
    return Uint8Array.from({ length: n }, (_, i) => Number(dropoutFactor(mask, (place.head ?? 0) * n + i) !== 0));
  },
  pairs(p: number, place: Place = {}): Uint8Array {
    const mask = pairMask(maskAt(p, place), (place.head ?? 0) * SIDE, SIDE);
    return Uint8Array.from({ length: n }, (_, i) => Number(pairFactor(mask, Math.floor(i / SIDE), i % SIDE) !== 0));
  },
};

const sum = (values: ArrayLike<number>) => Array.from(values).reduce((total, value) => total + value, 0);

/** Standard deviations by which a count of n trials is off its mean. */
const off = (count: number, share: number, trials: number) =>
  Math.abs(count - share * trials) / Math.sqrt(share * (1 - share) * trials + 1e-9);

/** Standard deviations by which the patterns of the places `at` in disjoint blocks are off those of independent elements. */
function patternsOff(masks: readonly Uint8Array[], p: number, height: number, width: number): number {
  const places = height * width;
  const seen = new Float64Array(2 ** places);
  for (const mask of masks)
    for (let row = 0; row + height <= SIDE; row += height)
      for (let column = 0; column + width <= SIDE; column += width) {
        let pattern = 0;
        for (let i = 0; i < places; i++)
          pattern = 2 * pattern + mask[(row + Math.floor(i / width)) * SIDE + column + (i % width)];
        seen[pattern]++;
      }
  const blocks = sum(seen);
  let squares = 0;
  for (const [pattern, count] of seen.entries()) {
    const kept = pattern.toString(2).replaceAll('0', '').length;
    const expected = blocks * (1 - p) ** kept * p ** (places - kept);
    squares += (count - expected) ** 2 / expected;
  }
  const freedom = seen.length - 1;
  return Math.abs(squares - freedom) / Math.sqrt(2 * freedom);
}

describe.each(['elements', 'pairs'] as const)('masks of %s', (kind) => {
  const kept = kinds[kind];

  test.each([0, 0.001, 0.1, 0.2, 0.5, 0.9])('drop a share of %s, over all and in rows and columns', (p) => {
    const mask = kept(p);
    expect(off(sum(mask), 1 - p, n)).toBeLessThan(BOUND);
    const rows = new Float64Array(SIDE);
    const columns = new Float64Array(SIDE);
    for (const [i, value] of mask.entries()) {
      rows[Math.floor(i / SIDE)] += value;
      columns[i % SIDE] += value;
    }
    // The squared deviations of a line are 1 in the mean, 2 in their variance.
    for (const lines of [rows, columns]) {
      const squares = sum(lines.map((count) => off(count, 1 - p, SIDE) ** 2));
      expect(
        Math.abs(squares - (p === 0 ? 0 : SIDE)) / Math.sqrt((2 + 1 / (SIDE * p * (1 - p) + 1e-9)) * SIDE),
      ).toBeLessThan(BOUND);
    }
  });

  test.each([
    [3, 3],
    [1, 8],
    [8, 1],
    [2, 4],
  ])('neighbours in blocks of %sx%s are independent', (height, width) => {
    for (const p of [0.5, 0.2]) {
      const masks = [0, 1, 2, 3].map((head) => kept(p, { head, site: head % 2 }));
      expect(patternsOff(masks, p, height, width)).toBeLessThan(BOUND);
    }
  });

  test('are independent of those of any other step, seed, site, rank and matrix, and of themselves moved', () => {
    const mask = kept(0.5);
    const moved = (by: number) => [...mask.slice(by), ...mask.slice(0, by)];
    const places: Place[] = [{ step: 1 }, { seed: 2 }, { site: 1 }, { rank: 1 }, { head: 1 }, { site: 1, rank: 1 }];
    const others = [
      ...places.map((place) => kept(0.5, place)),
      kept(0.5, { site: 65_536 }),
      ...[1, 2, 64, SIDE, SIDE + 1].map(moved),
    ];
    for (const other of others)
      expect(off(sum(mask.map((value, i) => Number(value === other[i]))), 0.5, n)).toBeLessThan(BOUND);
  });
});

test('masks of version 2: a run that is saved is resumed with them', () => {
  const place = { step: 3, seed: 42, site: 5, rank: 1 };
  const bits = (mask: Uint8Array) => mask.slice(0, 32).join('');
  expect(bits(kinds.elements(0.5, place))).toBe('10010110100110010111110101001101');
  expect(bits(kinds.pairs(0.5, place))).toBe('00110100101010100001010111010111');
});

test('kept elements are scaled so that the mean stays', () => {
  const control = new Float32Array(CONTROL_ELEMENTS);
  const out = new Float32Array(n);
  const params = { n, dropout: 0.2, ...maskKeys(9, 0, 1) };
  dropout.run([new Float32Array(n).fill(4), control, out], params);
  expect(new Set(out)).toEqual(new Set([0, 5]));
  expect(out.reduce((total, value) => total + value, 0) / n).toBeCloseTo(4, 1);
});

test('rows are multiplied by odd numbers: an even one would give some columns of a row the same hash', () => {
  const { multipliers } = pairMask(maskAt(0.5, {}), 0, SIDE);
  expect([...multipliers].filter((multiplier) => multiplier % 2 === 0)).toEqual([]);
});
