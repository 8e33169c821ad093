/**
 * The one order in which values of several ranks are added, so that no strategy changes a bit: a balanced binary tree
 * over the ranks. At each level neighbours are added in pairs, the right one into the left; an odd last one passes up
 * unchanged. Four ranks: (0+1)+(2+3). Five: ((0+1)+(2+3))+4. Seven: ((0+1)+(2+3))+((4+5)+6).
 */

/** The additions of the tree in the order to do them: `from` is added into `into`; the sum ends up in 0. Length worldSize - 1. */
export function addOrder(worldSize: number): readonly (readonly [into: number, from: number])[] {
  if (!Number.isInteger(worldSize) || worldSize < 1) {
    throw new RangeError(`worldSize must be a whole number of at least 1, got ${worldSize}`);
  }
  const order: [number, number][] = [];
  for (let stride = 1; stride < worldSize; stride *= 2) {
    for (let into = 0; into + stride < worldSize; into += 2 * stride) {
      order.push([into, into + stride]);
    }
  }
  return order;
}

/** The mean of one float32 value per rank: added in the tree, each sum rounded to float32, then multiplied once by float32(1/W). */
export function meanInTree(values: readonly number[]): number {
  const sums = values.map(Math.fround);
  for (const [into, from] of addOrder(sums.length)) {
    sums[into] = Math.fround(sums[into] + sums[from]);
  }
  return Math.fround(sums[0] * Math.fround(1 / sums.length));
}
