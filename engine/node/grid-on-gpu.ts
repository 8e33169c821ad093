import { afterAll, beforeAll, describe, it } from 'vitest';
import { grid } from './fixtures/grid.ts';
import { GridLaws } from './fixtures/grid-laws.ts';
import { gpuPlace } from './fixtures/reference-run.ts';

/**
 * Laws 1 and 2 over every row of the grid on a GPU, the ranks in one process sharing one device and its pipelines:
 * npm run test:grid. STUDIO_GRID_ADAPTER names the adapter; auto if it is not set.
 */

const { rows } = grid();
const perTest = 25;
const starts = Array.from({ length: Math.ceil(rows.length / perTest) }, (_, i) => i * perTest);

describe('predicted is measured, and the bits are DDP’s, on a GPU', () => {
  let gpu: Awaited<ReturnType<typeof gpuPlace>>;
  let laws: GridLaws;
  beforeAll(async () => {
    gpu = await gpuPlace(process.env.STUDIO_GRID_ADAPTER ?? 'auto');
    console.log(`${rows.length} rows on ${gpu.name}`);
    laws = new GridLaws(gpu);
  });
  afterAll(() => gpu?.device.close());

  it.each(starts)('rows from %i', async (start) => {
    for (const row of rows.slice(start, start + perTest)) await laws.check(row);
  });
});
