import type { KernelCase } from '../kernel-case.ts';
import { type ShardParameter, shardLayout, shardTable } from '../shard/layout.ts';
import { fillTable, unevenParameters } from '../shard/shard.cases.ts';
import { rowSquareSums } from './row-square-sums.ts';
import { treeSum } from './tree-sum.ts';

function rowCase(name: string, parameters: readonly ShardParameter[], world: number, rank: number): KernelCase {
  const layout = shardLayout(parameters, world);
  return {
    kernel: rowSquareSums,
    name: `${name}, rank ${rank} of ${world}`,
    params: { segments: parameters.length, totalRows: layout.localRows, rank },
    operandElements: [shardTable(layout).length, layout.shardElements, layout.localRows],
    fill: fillTable(layout),
    tolerance: 1e-6,
  };
}

const treeCase = (name: string, n: number, xOffset: number, outOffset: number): KernelCase => ({
  kernel: treeSum,
  name: `${name}: ${n}`,
  params: { n, xOffset, outOffset },
  operandElements: [xOffset + n, outOffset + Math.ceil(n / 256) + 1],
  tolerance: 0,
});

export const cases: KernelCase[] = [
  rowCase('one element', [{ name: 'p', rows: 1, rowLength: 1 }], 1, 0),
  rowCase('uneven', unevenParameters, 1, 0),
  rowCase('uneven', unevenParameters, 3, 2),
  rowCase('uneven', unevenParameters, 8, 7),
  rowCase('aligned rows, long', [{ name: 'p', rows: 35, rowLength: 512 }], 1, 0),
  rowCase('wide rows', [{ name: 'p', rows: 3, rowLength: 1031 }], 2, 0),
  treeCase('nothing', 0, 1, 1),
  treeCase('one', 1, 0, 0),
  treeCase('fewer than the lanes', 31, 3, 2),
  treeCase('a group', 256, 0, 0),
  treeCase('a group and one', 257, 0, 5),
  treeCase('a prime', 20_011, 1, 0),
];
