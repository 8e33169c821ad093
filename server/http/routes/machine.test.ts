import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import type { AdapterEntry } from '../../../engine/node/adapters.ts';
import { writeCalibration } from '../../../engine/node/calibration-store.ts';
import { ratesOf } from '../../../engine/schedule/fixtures/rates-of.ts';
import { builtInProfiles } from '../../../engine/schedule/profile.ts';
import { AdapterRates } from '../../../engine/schedule/rates.ts';
import { DeviceList } from '../../contract.ts';
import type { Services } from '../services.ts';
import { machineRoutes } from './machine.ts';

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'machine-'));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

const common = {
  pciId: null,
  software: false,
  tensorCores: true,
  features: ['subgroups'],
  limits: { maxBufferSize: 1024 },
  deviceMemoryBytes: 2 ** 34,
};
const entries = [
  { ...common, id: '0000:01:00.0', name: 'a GPU', driver: 'one 1.0' },
  { ...common, id: 'swiftshader', name: 'SwiftShader', driver: 'two 2.0', software: true, tensorCores: false },
] as unknown as AdapterEntry[];
const rates = AdapterRates.parse(ratesOf(builtInProfiles.h200));

it('lists the adapters with who uses them and what was measured of them', async () => {
  await writeCalibration(folder, entries[0], rates);
  const services = {
    adapters: { get: async () => entries },
    calibration: { stateOf: (id: string) => ({ state: id === 'swiftshader' ? 'waiting' : 'none', note: id }) },
    scheduler: { held: new Map([['swiftshader', 'a run']]) },
    folder: { root: folder },
  } as unknown as Services;
  const route = machineRoutes(services).find(({ path }) => path === '/devices')!;
  const { status, body } = (await route.handle({} as never)) as { status: number; body: unknown };
  expect(status).toBe(200);
  const { adapters, freeHostBytes } = DeviceList.parse(body);
  expect(adapters.map(({ id, busy, rates: measured }) => [id, busy, measured])).toEqual([
    ['0000:01:00.0', null, rates],
    ['swiftshader', 'a run', null],
  ]);
  expect(adapters.map(({ memoryBytes, calibration }) => [memoryBytes, calibration.state])).toEqual([
    [2 ** 34, 'none'],
    [null, 'waiting'],
  ]);
  expect(adapters.map(({ tensorCores }) => tensorCores)).toEqual([true, false]);
  expect(freeHostBytes).toBeGreaterThan(0);
});
