import type { TiledVariant } from '../engine/ops/kernel.ts';
import { type BlockShape, blockedVariant } from '../engine/ops/matmul/matmul-blocked.ts';
import { spreadRowsVariant } from '../engine/ops/matmul/matmul-few-rows-spread.ts';
import { streamVariant } from '../engine/ops/matmul/matmul-few-rows-stream.ts';
import { storeWgsl } from '../engine/ops/matmul/matmul-store.ts';
import type { Layout } from './product-error.ts';

const block = (M: number, N: number, K: number, rows: number, columns: number): BlockShape => ({
  ...{ M, N, K, rows, columns },
  warps: K % 8 === 0,
  wholeC: true,
});

/** [row lanes, column lanes, rows, columns] */
const SPREAD: readonly (readonly [number, number, number, number])[] = [
  [4, 1, 9, 8],
  [4, 2, 9, 4],
  [4, 2, 9, 8],
  [4, 4, 9, 8],
];

/** [row lanes, column lanes, column warps, rows, columns, turns, ahead, parts] */
const STREAM: readonly (readonly [number, number, number, number, number, number, number, number])[] = [
  [2, 4, 1, 9, 4, 3, 3, 1],
  [4, 4, 1, 9, 4, 2, 4, 1],
  [2, 8, 1, 18, 4, 2, 4, 1],
  [2, 8, 1, 18, 4, 3, 3, 1],
  [2, 8, 2, 18, 4, 4, 4, 1],
  [2, 8, 1, 18, 4, 3, 3, 4],
  [2, 8, 2, 18, 4, 4, 4, 8],
];

export interface Candidate extends TiledVariant {
  /** Sums over parts of k that a second dispatch adds. */
  readonly parts?: number;
}

function fewRowsCandidates(layout: 'nt' | 'nn', N: number): Candidate[] {
  const store = storeWgsl(false);
  const spread = SPREAD.map(([rowLanes, columnLanes, rows, columns]): Candidate => {
    const variant = spreadRowsVariant(layout, store, { rowLanes, columnLanes, rows, columns });
    return { ...variant, name: `${variant.name} ${rowLanes}x${columnLanes} of ${rows}x${columns}` };
  });
  const stream = STREAM.map(([rowLanes, columnLanes, columnWarps, rows, columns, turns, ahead, parts]): Candidate => {
    const shape = { threads: 256, rowLanes, columnLanes, columnWarps, rows, columns, turns, ahead, parts };
    const variant = streamVariant(layout, store, shape);
    return {
      ...variant,
      name: `${variant.name} ${rowLanes}x${columnLanes} of ${rows}x${columns} ahead ${ahead}`,
      parts,
    };
  });
  // The second dispatch adds whole vec4s.
  return [...spread, ...stream].filter(({ parts = 1 }) => parts === 1 || N % 4 === 0);
}

/** Variants that are measured for a product of this shape, not all of which fit it. */
export function candidates(layout: Layout, M: number, N: number, K: number): Candidate[] {
  if (layout !== 'tn' && M <= 64) return fewRowsCandidates(layout, N);
  if (K <= 64)
    return [
      block(64, 128, 36, 8, 4),
      block(64, 64, 36, 4, 4),
      block(128, 128, 36, 8, 8),
      block(64, 128, 12, 8, 4),
      block(32, 128, 36, 4, 4),
    ].map((shape) => blockedVariant(layout, false, shape));
  return [
    block(128, 128, 16, 8, 8),
    { ...block(128, 128, 16, 8, 8), wholeC: false },
    { ...block(128, 128, 16, 8, 8), warps: false },
    block(128, 128, 32, 8, 8),
    block(256, 128, 16, 16, 8),
    block(128, 256, 16, 8, 16),
    block(64, 128, 32, 4, 8),
  ].map((shape) => blockedVariant(layout, false, shape));
}
