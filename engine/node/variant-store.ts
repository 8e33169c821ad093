import { mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import type { VariantChoices } from '../ops/kernel.ts';
import type { CalibratedAdapter } from './calibration-store.ts';

/**
 * The kernel variants that a tuner chose for an adapter, kept in the data folder. They add in different orders, so the last
 * bits of a result may differ: a checkpoint records those of its run, and a resume on the same adapter keeps to them.
 */

const Stored = z.strictObject({
  name: z.string(),
  driver: z.string(),
  variants: z.record(z.string(), z.string()),
});

function fileOf(dataFolder: string, adapterId: string): string {
  return join(dataFolder, 'adapters', `${adapterId.replaceAll(/[^A-Za-z0-9._-]+/g, '-')}.variants.json`);
}

/** What was chosen for an adapter with this driver; nothing where it was not tuned, or what was kept cannot be read. */
export function readVariants(dataFolder: string, { id, name, driver }: CalibratedAdapter): VariantChoices {
  try {
    const stored = Stored.parse(JSON.parse(readFileSync(fileOf(dataFolder, id), 'utf8')));
    return stored.name === name && stored.driver === driver ? stored.variants : {};
  } catch {
    // The defaults serve, and the next tuning writes it anew.
    return {};
  }
}

/** Keeps what was chosen. Throws what the file system says. */
export function writeVariants(
  dataFolder: string,
  { id, name, driver }: CalibratedAdapter,
  variants: VariantChoices,
): void {
  const path = fileOf(dataFolder, id);
  mkdirSync(join(dataFolder, 'adapters'), { recursive: true, mode: 0o700 });
  const stored = { name, driver, variants: { ...variants } } satisfies z.infer<typeof Stored>;
  writeFileSync(`${path}.${process.pid}`, `${JSON.stringify(stored, null, 2)}\n`);
  renameSync(`${path}.${process.pid}`, path);
}
