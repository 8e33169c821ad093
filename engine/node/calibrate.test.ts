import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { ratesOf } from '../schedule/fixtures/rates-of.ts';
import { builtInProfiles } from '../schedule/profile.ts';
import { AdapterRates } from '../schedule/rates.ts';
import { calibrate, placesFrom } from './calibrate.ts';
import { copyRatesFrom, type Traffic } from './calibrate-copies.ts';
import { readCalibration, writeCalibration } from './calibration-store.ts';

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'calibrate-'));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

const rates = ratesOf(builtInProfiles.software);
const adapter = { id: '10de:2335', name: 'a GPU', driver: 'one 1.0' };

it('measures rates that are numbers above zero, on the bundled software GPU, of copies by one process and by two', async () => {
  const measured = await calibrate(['swiftshader']);
  // The schema asks for finite numbers above zero.
  expect(AdapterRates.parse(measured)).toEqual(measured);
  expect(measured.copies.map(({ processes }) => processes)).toEqual([1, 2]);
}, 60_000);

it('ends early in words when it is asked to', async () => {
  const abort = new AbortController();
  const measured = calibrate(['swiftshader'], abort.signal);
  abort.abort();
  await expect(measured).rejects.toMatchObject({ code: 'no-adapter', message: expect.stringContaining('SIGKILL') });
  await expect(calibrate(['swiftshader'], abort.signal)).rejects.toMatchObject({ code: 'no-adapter' });
});

it('says in words why an adapter cannot be measured', async () => {
  await expect(calibrate(['a GPU that is not here'])).rejects.toMatchObject({
    code: 'no-adapter',
    message: expect.stringContaining('nothing here is called a GPU that is not here'),
  });
});

it('has its processes take turns over the GPUs of one name, those of a software adapter share it', () => {
  const adapters = [
    { id: 'a', name: 'H200', software: false },
    { id: 'b', name: 'H200', software: false },
    { id: 'c', name: 'A10', software: false },
    { id: 'swiftshader', name: 'SwiftShader', software: true },
  ];
  expect(adapters.map((entry) => placesFrom(entry, adapters))).toEqual([
    ['a', 'b'],
    ['b', 'a'],
    ['c'],
    ['swiftshader'],
  ]);
});

it('gives copies both ways the rates by which one queue of threads does what was done', () => {
  const idle: Traffic = {
    seconds: 1,
    pieces: 0,
    upBytes: 0,
    downBytes: 0,
    copyingSeconds: 1,
    downTrips: [],
  };
  const traffic = {
    'round trip': { ...idle, downTrips: [1e-4, 2e-4, 9e-4] },
    host: { ...idle, pieces: 10_000 },
    'device to staging': { ...idle, downBytes: 40e9 },
    'staging to device': { ...idle, upBytes: 150e9 },
    up: { ...idle, upBytes: 20e9, copyingSeconds: 0.5 },
    down: { ...idle, downBytes: 30e9 },
    // Alone these would take 0.5 and 1 s, and together they took 0.75 of it.
    both: { ...idle, upBytes: 20e9, downBytes: 30e9, copyingSeconds: 0.75 },
  };
  const copies = copyRatesFrom(traffic, 2);
  expect(copies).toMatchObject({
    processes: 2,
    downloadBytesPerSecond: 40e9,
    placeBytesPerSecond: 150e9,
    pieceSeconds: 1e-4,
    roundTripSeconds: 2e-4,
  });
  const { uploadBytesPerSecond, hostCopyBytesPerSecond } = copies;
  expect(uploadBytesPerSecond / hostCopyBytesPerSecond).toBeCloseTo(4 / 3, 9);
  expect(20e9 / uploadBytesPerSecond + 30e9 / hostCopyBytesPerSecond).toBeCloseTo(0.75, 9);
});

it('is measured again where what was kept says less than is asked now', async () => {
  await writeCalibration(folder, adapter, rates);
  const path = join(folder, 'adapters', '10de-2335.json');
  const { copies: _, ...before } = rates;
  await writeFile(path, JSON.stringify({ name: adapter.name, driver: adapter.driver, rates: before }));
  expect(await readCalibration(folder, adapter)).toBeNull();
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
