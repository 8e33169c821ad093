import { describe, expect, test } from 'vitest';
import { treeOrder } from '../ops/shard/tree-order.ts';
import { meanInTree } from './reduce-tree.ts';

/** The sum as written out, e.g. ((0+1)+2). */
function written(worldSize: number): string {
  const terms = Array.from({ length: worldSize }, (_, rank) => String(rank));
  for (const [into, from] of treeOrder(worldSize)) {
    terms[into] = `(${terms[into]}+${terms[from]})`;
    terms[from] = 'spent';
  }
  return terms[0];
}

describe('treeOrder', () => {
  test.each([
    [1, '0'],
    [2, '(0+1)'],
    [3, '((0+1)+2)'],
    [4, '((0+1)+(2+3))'],
    [5, '(((0+1)+(2+3))+4)'],
    [6, '(((0+1)+(2+3))+(4+5))'],
    [7, '(((0+1)+(2+3))+((4+5)+6))'],
    [8, '(((0+1)+(2+3))+((4+5)+(6+7)))'],
  ])('%i ranks', (worldSize, expected) => {
    expect(written(worldSize)).toBe(expected);
  });

  test('blocks of consecutive ranks of a power-of-two mesh are subtrees', () => {
    const inRow = treeOrder(4);
    const acrossRows = treeOrder(2).map(([into, from]) => [into * 4, from * 4]);
    const byStride = (a: readonly number[], b: readonly number[]) => a[1] - a[0] - (b[1] - b[0]) || a[0] - b[0];
    const mesh = [...inRow, ...inRow.map(([into, from]) => [into + 4, from + 4]), ...acrossRows].sort(byStride);
    expect(mesh).toEqual(treeOrder(8));
  });

  test('refuses an empty world', () => {
    expect(() => treeOrder(0)).toThrow(RangeError);
  });
});

describe('meanInTree', () => {
  test('rounds at each addition, in the order of the tree', () => {
    // 2^24 + 1 is not a float32: from left to right both ones would be lost, in the tree they are added first.
    const values = [2 ** 24, 0, 1, 1];
    expect(meanInTree(values)).toBe((2 ** 24 + 2) / 4);
    expect(meanInTree([2 ** 24, 1, 1])).toBe(Math.fround(2 ** 24 * Math.fround(1 / 3)));
  });

  test('one value is itself, in float32', () => {
    expect(meanInTree([0.1])).toBe(Math.fround(0.1));
  });
});
