import { withHalves } from '../half/with-halves.ts';
import type { KernelCase } from '../kernel-case.ts';
import { type ShardLayout, type ShardParameter, shardLayout, shardTable } from './layout.ts';
import { reduceTree } from './reduce-tree.ts';
import { shardPack } from './shard-pack.ts';
import { shardPackHalf } from './shard-pack-half.ts';
import { takeShard } from './take-shard.ts';
import { unshard } from './unshard.ts';
import { unshardHalf } from './unshard-half.ts';

/** Parameters whose rows do not divide, which end in the middle of a rank, or which leave ranks without a row. */
export const unevenParameters: readonly ShardParameter[] = [
  { name: 'embedding', rows: 97, rowLength: 32 },
  { name: 'bias', rows: 7, rowLength: 1 },
  { name: 'scalar', rows: 1, rowLength: 1 },
  { name: 'weight', rows: 5, rowLength: 13 },
  { name: 'last', rows: 3, rowLength: 3 },
];

/** The layout's table into operand 0, uniform numbers into the others. */
export function fillTable(layout: ShardLayout): NonNullable<KernelCase['fill']> {
  return (operand, view, random) => {
    if (operand === 0) view.set(shardTable(layout));
    else for (let i = 0; i < view.length; i++) view[i] = random() * 2 - 1;
  };
}

function shardCases(name: string, parameters: readonly ShardParameter[], world: number, self: number): KernelCase[] {
  const layout = shardLayout(parameters, world);
  const { shardElements, fullElements } = layout;
  const segments = parameters.length;
  const table = shardTable(layout).length;
  const fill = fillTable(layout);
  const windows = [
    { begin: 0, count: shardElements },
    { begin: Math.floor(shardElements / 3), count: Math.ceil(shardElements / 2) },
    { begin: shardElements, count: 0 },
  ];
  return windows.flatMap(({ begin, count }, window): KernelCase[] => {
    const common = { name: `${name}, rank ${self} of ${world}, ${begin}+${count}`, fill };
    const range = { segments, begin, count };
    return [
      {
        ...common,
        kernel: unshard,
        params: { ...range, rank: self, sourceOffset: window },
        operandElements: [table, window + count, fullElements],
        tolerance: 0,
      },
      {
        ...common,
        kernel: shardPack,
        params: { ...range, self, ranks: world - 1 },
        operandElements: [table, fullElements, (world - 1) * count],
        tolerance: 0,
      },
      {
        ...common,
        kernel: takeShard,
        params: { ...range, rank: self },
        operandElements: [table, fullElements, count],
        tolerance: 0,
      },
      {
        ...common,
        kernel: reduceTree,
        params: { ...range, self, world, outOffset: window, scale: 1 / world, accumulate: window % 2 },
        operandElements: [table, fullElements, (world - 1) * count, window + count],
        // A driver may fuse the product with the sum it is added to, which shows when 1 / world is not a power of two.
        tolerance: window % 2 === 1 ? 1e-6 : 0,
      },
    ];
  });
}

/** The same over halves: shards begin on 16 bytes of them. */
function halfCases(parameters: readonly ShardParameter[], world: number, self: number): KernelCase[] {
  const layout = shardLayout(parameters, world, 8);
  const { shardElements, fullElements } = layout;
  const table = shardTable(layout).length;
  const fill = fillTable(layout);
  const windows = [
    { begin: 0, count: shardElements },
    { begin: 4, count: Math.floor(shardElements / 8) * 4 },
    { begin: shardElements, count: 0 },
  ];
  return windows.flatMap(({ begin, count }): KernelCase[] => {
    const common = { name: `rank ${self} of ${world}, ${begin}+${count}`, fill, tolerance: 0 };
    const range = { segments: parameters.length, begin, count };
    const place = {
      params: { ...range, rank: self, sourceOffset: 2 },
      operandElements: [table, 2 + count, fullElements],
    };
    return [
      { ...common, ...place, kernel: unshardHalf },
      { ...common, ...place, kernel: withHalves(unshardHalf, ['source']) },
      {
        ...common,
        kernel: shardPackHalf,
        params: { ...range, self, ranks: world - 1 },
        operandElements: [table, fullElements, (world - 1) * count],
      },
      {
        ...common,
        kernel: withHalves(reduceTree, ['received']),
        params: { ...range, self, world, outOffset: 0, scale: 0.5, accumulate: 0 },
        operandElements: [table, fullElements, (world - 1) * count, count],
      },
    ];
  });
}

export const cases: KernelCase[] = [
  ...halfCases(unevenParameters, 1, 0),
  ...halfCases(unevenParameters, 2, 1),
  ...halfCases(unevenParameters, 3, 1),
  ...halfCases(unevenParameters, 5, 4),
  ...halfCases(unevenParameters, 8, 6),
  ...shardCases('one element', [{ name: 'p', rows: 1, rowLength: 1 }], 1, 0),
  ...shardCases('uneven', unevenParameters, 1, 0),
  ...shardCases('uneven', unevenParameters, 2, 1),
  ...shardCases('uneven', unevenParameters, 3, 1),
  ...shardCases('uneven', unevenParameters, 5, 4),
  ...shardCases('uneven', unevenParameters, 7, 0),
  ...shardCases('uneven', unevenParameters, 8, 6),
];
