import { expect, it } from 'vitest';
import { parseConfig } from '../../engine/config.ts';
import { ratesOf } from '../../engine/schedule/fixtures/rates-of.ts';
import { planExperiment } from '../../engine/schedule/plan.ts';
import { builtInProfiles } from '../../engine/schedule/profile.ts';
import { adapterHint, placeFor, profileFor } from './adapter-profile.ts';
import type { Devices } from './api.ts';

const limits = { minStorageBufferOffsetAlignment: 32, maxStorageBufferBindingSize: 2 ** 30, maxBufferSize: 2 ** 31 };
const gpu = {
  name: 'a GPU',
  software: false,
  pciId: null,
  tensorCores: false,
  features: [],
  limits,
  busy: null,
  memoryBytes: null,
  rates: null,
  calibration: { state: 'none' as const, note: '' },
};
const rates = { ...ratesOf(builtInProfiles.software), dispatchSeconds: 7e-6 };
const devices: Devices = {
  adapters: [
    { ...gpu, id: 'one' },
    { ...gpu, id: 'two' },
    { ...gpu, id: 'swiftshader', name: 'SwiftShader', software: true, rates },
  ],
  freeHostBytes: 2 ** 34,
  error: null,
};

it('takes the rates that were measured, else those of the nearest built-in profile', () => {
  expect(profileFor('software', devices)).toMatchObject({
    name: 'SwiftShader',
    dispatchSeconds: 7e-6,
    calibrated: true,
  });
  const { kernels, calibrated, offsetAlignmentBytes } = profileFor('auto', devices);
  expect([kernels, calibrated, offsetAlignmentBytes]).toEqual([builtInProfiles.h200.kernels, undefined, 32]);
  expect(profileFor('auto', undefined)).toBe(builtInProfiles.software);
});

it('runs products of halves on tensor cores where the adapter has them, as plan does', () => {
  const [one, two, three] = devices.adapters;
  const listed: Devices = { ...devices, adapters: [{ ...one, tensorCores: true }, two, three] };
  expect(profileFor('one', listed).tensorCores).toBe(true);
  expect(profileFor('two', listed).tensorCores).toBe(false);
  const config = parseConfig({
    model: { kind: 'demo-transformer', vocabSize: 512, ninp: 256, nhead: 16, nhid: 512, nlayers: 1 },
    data: { kind: 'moby-dick', blockSize: 128, batchSize: 1 },
    precision: '16-mixed',
  });
  const [onCores, off] = ['one', 'two'].map((id) => planExperiment(config, profileFor(id, listed)).estimateMs!);
  expect(onCores).toBeLessThan(off);
});

it('knows over how many adapters a run spreads: GPUs of one name under auto, else one', () => {
  const alike = ['auto', 'one', 'software'].map((adapter) => profileFor(adapter, devices).alike);
  expect(alike).toEqual([2, 1, 1]);
});

it('says beside an adapter what to install where the machine has none; the interpreter needs none', () => {
  const none: Devices = {
    adapters: [],
    freeHostBytes: 0,
    error: 'No GPU adapter works here. Install a Vulkan driver.',
  };
  for (const adapter of ['auto', 'software', 'H200']) expect(adapterHint(adapter, none)).toBe(none.error);
  expect(adapterHint('interpreter', none)).toBeNull();
  expect(adapterHint('auto', devices)).toBeNull();
  expect(adapterHint('auto', undefined)).toBeNull();
});

it('says where a run would run and with what memory, where the machine says', () => {
  const [one, ...others] = devices.adapters;
  const machine = { ...devices, adapters: [{ ...one, memoryBytes: 2 ** 36 }, ...others] };
  expect(placeFor('one', machine)).toMatchObject({ memoryBytes: 2 ** 36, freeHostBytes: 2 ** 34 });
  expect(placeFor('software', machine)).toMatchObject({ memoryBytes: null, profile: { name: 'SwiftShader' } });
  expect(placeFor('interpreter', machine)).toMatchObject({ memoryBytes: null, profile: { name: 'interpreter' } });
  expect([placeFor('auto', undefined), placeFor('a GPU of another machine', machine)]).toEqual([null, null]);
});
