import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { grid, unplacedSettings } from './fixtures/grid.ts';
import { GridLaws } from './fixtures/grid-laws.ts';
import { interpreterPlace, softwareGpuPlace } from './fixtures/reference-run.ts';

/**
 * Laws 1 and 2 over the grid of legal configurations, worlds 1 to 4. The grid has tens of millions; trained are rows of it
 * such that any two settings meet in some row, and any three of those that shape the schedule: all on the interpreter,
 * and a fixed sample on the software GPU. All rows on a GPU: npm run test:grid.
 */

const { count, rows, dimensions } = grid();

it('has a place for every setting of the schema', () => {
  expect(unplacedSettings()).toEqual([]);
});

it('lists the legal configurations', () => {
  const sizes = dimensions.map(({ name, values }) => `${name} ${values.length}`).join(', ');
  console.log(
    `${count.toLocaleString('en')} legal configurations; ${rows.length} rows in which any two settings meet, any three that shape the schedule (${sizes})`,
  );
  expect(count).toBeGreaterThan(1e6);
  expect(rows.length).toBeGreaterThan(200);
});

describe('predicted is measured (report 47), and the bits are DDP’s', () => {
  const perTest = 25;
  const laws = new GridLaws(interpreterPlace);
  const starts = Array.from({ length: Math.ceil(rows.length / perTest) }, (_, i) => i * perTest);

  it.each(starts)(
    'on the interpreter, rows from %i',
    async (start) => {
      for (const row of rows.slice(start, start + perTest)) await laws.check(row);
    },
    60_000,
  );

  describe('on a software GPU', () => {
    const samples = 12;
    let gpu: Awaited<ReturnType<typeof softwareGpuPlace>>;
    beforeAll(async () => {
      gpu = await softwareGpuPlace();
    });
    afterAll(() => gpu?.device.close());

    it('a fixed sample of rows', async () => {
      const onGpu = new GridLaws(gpu);
      for (let i = 0; i < samples; i++) await onGpu.check(rows[Math.floor((i * rows.length) / samples)]);
    }, 120_000);
  });
});
