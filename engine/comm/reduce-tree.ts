import { treeOrder } from '../ops/shard/tree-order.ts';

/** The mean of one float32 value per rank: added in the tree, each sum rounded to float32, then multiplied once by float32(1/W). */
export function meanInTree(values: readonly number[]): number {
  const sums = values.map(Math.fround);
  for (const [into, from] of treeOrder(sums.length)) {
    sums[into] = Math.fround(sums[into] + sums[from]);
  }
  return Math.fround(sums[0] * Math.fround(1 / sums.length));
}
