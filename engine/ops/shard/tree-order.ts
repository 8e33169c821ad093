/**
 * The one order in which the values of several ranks are added: a balanced binary tree over the ranks. At each level
 * neighbours are added in pairs, the right one into the left; an odd last one passes up unchanged. Four ranks:
 * (0+1)+(2+3). Five: ((0+1)+(2+3))+4. Seven: ((0+1)+(2+3))+((4+5)+6).
 *
 * Returns the additions in the order to do them: `from` is added into `into`, and the sum ends up in 0. Throws RangeError
 * unless `world` is a whole number of at least 1.
 */
export function treeOrder(world: number): readonly (readonly [into: number, from: number])[] {
  if (!Number.isInteger(world) || world < 1) {
    throw new RangeError(`world must be a whole number of at least 1, got ${world}`);
  }
  const order: [number, number][] = [];
  for (let stride = 1; stride < world; stride *= 2) {
    for (let into = 0; into + stride < world; into += 2 * stride) order.push([into, into + stride]);
  }
  return order;
}
