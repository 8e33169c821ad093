import { expect, test } from 'vitest';
import { seededRandom } from '../kernel-case.ts';
import { rowSumLayout, shardLayout, shardTable } from '../shard/layout.ts';
import { unevenParameters } from '../shard/shard.cases.ts';
import { shardPack } from '../shard/shard-pack.ts';
import { unshard } from '../shard/unshard.ts';
import { rowSquareSums } from './row-square-sums.ts';
import { TREE_SUM_INPUTS, treeSum } from './tree-sum.ts';

const random = seededRandom(17);
const segments = unevenParameters.length;
const whole = shardLayout(unevenParameters, 1);
const full = Float32Array.from({ length: whole.fullElements }, () => random() * 2 - 1);

/** The squared norm as a run of `world` ranks has it: row sums of each shard, put in order, added level by level. */
function squaredNorm(world: number): { rows: Float32Array; sum: number } {
  const layout = shardLayout(unevenParameters, world);
  const sums = rowSumLayout(layout);
  let level = new Float32Array(sums.fullElements);
  for (let rank = 0; rank < world; rank++) {
    // Rank `world` does not exist, so its pack is that of all the others.
    const shards = new Float32Array(world * layout.shardElements);
    shardPack.run([shardTable(layout), full, shards], {
      segments,
      begin: 0,
      count: layout.shardElements,
      self: world,
      ranks: world,
    });
    const shard = shards.slice(rank * layout.shardElements, (rank + 1) * layout.shardElements);
    const rows = new Float32Array(layout.localRows).fill(-1);
    rowSquareSums.run([shardTable(layout), shard, rows], { segments, totalRows: layout.localRows, rank });
    const params = { segments, begin: 0, count: layout.localRows, rank, sourceOffset: 0 };
    unshard.run([shardTable(sums), rows, level], params);
  }
  const rows = level;
  while (level.length > 1) {
    const next = new Float32Array(Math.ceil(level.length / TREE_SUM_INPUTS));
    treeSum.run([level, next], { n: level.length, xOffset: 0, outOffset: 0 });
    level = next;
  }
  return { rows, sum: level[0] };
}

test('row sums are the squares of each row', () => {
  const { rows } = squaredNorm(1);
  let row = 0;
  for (const s of whole.segments) {
    for (let r = 0; r < s.rows; r++) {
      const values = full.subarray(s.fullOffset + r * s.rowLength, s.fullOffset + (r + 1) * s.rowLength);
      const expected = values.reduce((sum, value) => sum + value * value, 0);
      expect(rows[row++] / expected).toBeCloseTo(1, 5);
    }
  }
  expect(row).toBe(rows.length);
});

test.each([2, 3, 5, 8])('sharding over %i ranks changes no bit of the row sums or of the norm', (world) => {
  expect(squaredNorm(world)).toEqual(squaredNorm(1));
});

test('rows that a rank does not have are 0, whatever lies there', () => {
  const layout = shardLayout([{ name: 'p', rows: 3, rowLength: 2 }], 2);
  const rows = new Float32Array(2).fill(-1);
  rowSquareSums.run([shardTable(layout), new Float32Array(4).fill(3), rows], { segments: 1, totalRows: 2, rank: 1 });
  expect(Array.from(rows)).toEqual([18, 0]);
});

test('tree-sum adds groups of 256 and keeps the small numbers that a running sum would lose', () => {
  const x = new Float32Array(300).fill(1);
  const out = new Float32Array(4).fill(-1);
  treeSum.run([x, out], { n: 299, xOffset: 1, outOffset: 1 });
  expect(Array.from(out)).toEqual([-1, 256, 43, -1]);
});
