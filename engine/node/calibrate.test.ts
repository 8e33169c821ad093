import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { ratesOf } from '../schedule/fixtures/rates-of.ts';
import { builtInProfiles } from '../schedule/profile.ts';
import { AdapterRates } from '../schedule/rates.ts';
import { calibrateAdapter, calibrateInChild } from './calibrate.ts';
import { readCalibration, writeCalibration } from './calibration-store.ts';

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'calibrate-'));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

const rates = ratesOf(builtInProfiles.software);
const adapter = { id: '10de:2335', name: 'a GPU', driver: 'one 1.0' };

it('measures rates that are numbers above zero, on the bundled software GPU', async () => {
  const measured = await calibrateAdapter('swiftshader');
  // The schema asks for finite numbers above zero.
  expect(AdapterRates.parse(measured)).toEqual(measured);
}, 60_000);

it('ends early in words when it is asked to', async () => {
  const abort = new AbortController();
  const measured = calibrateInChild('swiftshader', abort.signal);
  abort.abort();
  await expect(measured).rejects.toMatchObject({ code: 'no-adapter', message: expect.stringContaining('SIGKILL') });
  await expect(calibrateInChild('swiftshader', abort.signal)).rejects.toMatchObject({ code: 'no-adapter' });
});

it('is kept for an adapter and its driver', async () => {
  expect(await readCalibration(folder, adapter)).toBeNull();
  await writeCalibration(folder, adapter, rates);
  expect(await readCalibration(folder, adapter)).toEqual(rates);
  expect(await readCalibration(folder, { ...adapter, driver: 'one 1.1' })).toBeNull();
  expect(await readCalibration(folder, { ...adapter, id: '10de:2336' })).toBeNull();
  const files = await readdir(join(folder, 'adapters'));
  expect(files).toEqual(['10de-2335.json']);
  await writeFile(join(folder, 'adapters', files[0]), '{"rates": 1');
  expect(await readCalibration(folder, adapter)).toBeNull();
});
