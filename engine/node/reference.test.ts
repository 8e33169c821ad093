import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { expectAsPlanned } from './fixtures/laws.ts';
import { type ColumnName, columns, STEPS, strategies, trainColumn } from './fixtures/reference-columns.ts';
import { interpreterPlace, type Place, softwareGpuPlace } from './fixtures/reference-run.ts';

/** Law 3: it trains as PyTorch trains, in every column under every strategy. Law 1, on the same runs. */

let gpu: Awaited<ReturnType<typeof softwareGpuPlace>>;
beforeAll(async () => {
  gpu = await softwareGpuPlace();
}, 60_000);
afterAll(() => gpu?.device.close());

const places: Record<string, () => Place> = { interpreter: () => interpreterPlace, 'a software GPU': () => gpu };

/** Every pair on the interpreter; on the software GPU a third of them, every column and every strategy among them. */
const isTried = (place: string, column: number, strategy: number) =>
  place === 'interpreter' || (column + strategy) % 3 === 0;
const names = Object.keys(columns) as ColumnName[];

describe.each(Object.keys(places))('against real PyTorch, on %s', (place) => {
  describe.each(names)('%s', (column) => {
    // A mesh has no place on one rank.
    const fitting = Object.entries(strategies).filter(
      ([, strategy], i) =>
        isTried(place, names.indexOf(column), i) && (columns[column].devices > 1 || !('deviceMesh' in strategy)),
    );
    it.each(fitting)('under %s: losses, norms, memory, weights', async (_, strategy) => {
      const { loss, gradNorm, weight, keyBias } = await trainColumn(places[place](), column, strategy, (ranks) =>
        expectAsPlanned(ranks, [STEPS - 2]),
      );
      expect(loss).toBeLessThan(1e-4);
      expect(gradNorm).toBeLessThan(1e-4);
      if ('final' in columns[column]) {
        expect(weight).toBeLessThanOrEqual(1e-4);
        expect(keyBias).toBeLessThanOrEqual(1);
      } else expect(weight).toBeNull();
    });
  });
});
