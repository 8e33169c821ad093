import { mkdir, readFile, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { AdapterRates } from '../schedule/rates.ts';
import type { AdapterEntry } from './adapters.ts';

/** What was measured of an adapter, kept in the data folder; another driver is measured anew. */

const Stored = z.strictObject({
  name: z.string(),
  driver: z.string(),
  rates: AdapterRates,
});

/** What tells one adapter and driver from another. */
export type CalibratedAdapter = Pick<AdapterEntry, 'id' | 'name' | 'driver'>;

function fileOf(dataFolder: string, { id }: CalibratedAdapter): string {
  return join(dataFolder, 'adapters', `${id.replaceAll(/[^A-Za-z0-9._-]+/g, '-')}.json`);
}

/** The rates measured on this adapter with this driver; null where there are none, or none that can be read. */
export async function readCalibration(dataFolder: string, adapter: CalibratedAdapter): Promise<AdapterRates | null> {
  try {
    const { name, driver, rates } = Stored.parse(JSON.parse(await readFile(fileOf(dataFolder, adapter), 'utf8')));
    return name === adapter.name && driver === adapter.driver ? rates : null;
  } catch {
    // Only a better estimate is lost, and the next calibration writes it anew.
    return null;
  }
}

/** Keeps the rates of an adapter. Throws what the file system says. */
export async function writeCalibration(
  dataFolder: string,
  adapter: CalibratedAdapter,
  rates: AdapterRates,
): Promise<void> {
  const path = fileOf(dataFolder, adapter);
  await mkdir(join(dataFolder, 'adapters'), { recursive: true, mode: 0o700 });
  const { name, driver } = adapter;
  await writeFile(
    `${path}.${process.pid}`,
    `${JSON.stringify({ name, driver, rates } satisfies z.infer<typeof Stored>, null, 2)}\n`,
  );
  await rename(`${path}.${process.pid}`, path);
}
