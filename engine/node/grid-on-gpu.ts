import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { memoryAtSteps5And200 } from './fixtures/flat-memory.ts';
import { grid } from './fixtures/grid.ts';
import { GridLaws } from './fixtures/grid-laws.ts';
import { type ColumnName, columns, ranksOf, strategies, trainColumn } from './fixtures/reference-columns.ts';
import { gpuPlace } from './fixtures/reference-run.ts';

/**
 * What is too much for a software GPU, on a real one, the ranks in one process sharing one device and its pipelines:
 * npm run test:grid. STUDIO_GRID_ADAPTER names the adapter; auto if it is not set.
 */

const { rows } = grid();
const perTest = 25;
const starts = Array.from({ length: Math.ceil(rows.length / perTest) }, (_, i) => i * perTest);

let gpu: Awaited<ReturnType<typeof gpuPlace>>;
beforeAll(async () => {
  gpu = await gpuPlace(process.env.STUDIO_GRID_ADAPTER ?? 'auto');
  console.log(`${rows.length} rows on ${gpu.name}`);
});
afterAll(() => gpu?.device.close());

describe('predicted is measured, and the bits are DDP’s, on a GPU', () => {
  let laws: GridLaws;
  beforeAll(() => {
    laws = new GridLaws(gpu);
  });

  it.each(starts)('rows from %i', async (start) => {
    for (const row of rows.slice(start, start + perTest)) await laws.check(row);
  });
});

describe('it trains as PyTorch trains, on a GPU', () => {
  describe.each(Object.keys(columns) as ColumnName[])('%s', (column) => {
    const fitting = Object.entries(strategies).filter(([, s]) => columns[column].devices > 1 || !('deviceMesh' in s));
    it.each(fitting)('under %s', async (_, strategy) => {
      const { loss, gradNorm, weight, keyBias } = await trainColumn(gpu, column, strategy);
      expect(loss).toBeLessThan(1e-4);
      expect(gradNorm).toBeLessThan(1e-4);
      expect(weight ?? 0).toBeLessThanOrEqual(1e-4);
      expect(keyBias ?? 0).toBeLessThanOrEqual(1);
    });
  });
});

it.each(Object.entries(strategies))('memory stays flat on a GPU, %s', async (_, strategy) => {
  const [early, late] = await memoryAtSteps5And200(gpu, strategy, ranksOf(strategy));
  expect(late).toEqual(early);
});
