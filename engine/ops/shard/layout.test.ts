import { describe, expect, test } from 'vitest';
import { rowSumLayout, rowsOf, SEGMENT_COLUMNS, shardLayout, shardTable } from './layout.ts';
import { unevenParameters } from './shard.cases.ts';

describe.each([1, 2, 3, 4, 5, 8])('over %i ranks', (world) => {
  const layout = shardLayout(unevenParameters, world);

  test('every row of every parameter is on one rank, in chunks as torch.chunk makes them', () => {
    for (const segment of layout.segments) {
      const owners = Array.from({ length: world }, (_, rank) => rowsOf(segment, rank));
      // torch.chunk: full chunks, then the rest, then nothing.
      let left = segment.rows;
      for (const { first, count } of owners) {
        expect(count).toBe(Math.min(left, Math.ceil(segment.rows / world)));
        expect(first).toBe(segment.rows - left);
        left -= count;
      }
      expect(left).toBe(0);
    }
  });

  test('segments are aligned, in order and disjoint, in the shard and in the full unit', () => {
    let shardEnd = 0;
    let fullEnd = 0;
    let rows = 0;
    let localRows = 0;
    for (const s of layout.segments) {
      expect([s.shardOffset % 4, s.fullOffset % 4]).toEqual([0, 0]);
      expect(s.shardOffset).toBeGreaterThanOrEqual(shardEnd);
      expect(s.fullOffset).toBeGreaterThanOrEqual(fullEnd);
      expect([s.rowStart, s.localRowStart]).toEqual([rows, localRows]);
      shardEnd = s.shardOffset + s.chunkRows * s.rowLength;
      fullEnd = s.fullOffset + s.rows * s.rowLength;
      rows += s.rows;
      localRows += s.chunkRows;
    }
    expect(layout.shardElements).toBe(Math.ceil(shardEnd / 4) * 4);
    expect(layout.fullElements).toBe(Math.ceil(fullEnd / 4) * 4);
    expect(layout.localRows).toBe(localRows);
  });
});

test('rowStart of a parameter can be given: a unit need not be contiguous in the order of the norm', () => {
  const { segments } = shardLayout(
    [
      { name: 'first', rows: 3, rowLength: 2 },
      { name: 'last', rows: 5, rowLength: 1, rowStart: 100 },
      { name: 'after', rows: 1, rowLength: 1 },
    ],
    2,
  );
  expect(segments.map((s) => s.rowStart)).toEqual([0, 100, 105]);
  expect(segments.map((s) => s.localRowStart)).toEqual([0, 2, 5]);
});

test('the table has seven numbers a segment', () => {
  const table = shardTable(shardLayout([{ name: 'p', rows: 5, rowLength: 3, rowStart: 9 }], 2));
  expect(table).toEqual(Uint32Array.of(0, 3, 3, 5, 0, 9, 0));
  expect(SEGMENT_COLUMNS).toBe(7);
});

test('the layout of row sums has a shard element per local row and the norm order as its full tensor', () => {
  const layout = shardLayout(unevenParameters, 3);
  const sums = rowSumLayout(layout);
  expect(sums.shardElements).toBe(layout.localRows);
  expect(sums.fullElements).toBe(97 + 7 + 1 + 5 + 3);
});

test('sizes that are not positive whole numbers, and units over the index range, are refused', () => {
  const one = { name: 'p', rows: 1, rowLength: 1 };
  expect(() => shardLayout([one], 0)).toThrow('world must be');
  expect(() => shardLayout([{ ...one, rows: 0 }], 1)).toThrow('rows of p must be');
  expect(() => shardLayout([{ ...one, rowLength: 1.5 }], 1)).toThrow('rowLength of p must be');
  expect(() => shardLayout([{ name: 'p', rows: 2 ** 16, rowLength: 2 ** 16 }], 2)).toThrow('Wrap smaller units');
});
