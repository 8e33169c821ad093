import { expect, it } from 'vitest';
import { builtInProfiles } from '../../engine/schedule/profile.ts';
import { profileFor } from './adapter-profile.ts';
import type { Devices } from './api.ts';

const limits = { minStorageBufferOffsetAlignment: 32, maxStorageBufferBindingSize: 2 ** 30, maxBufferSize: 2 ** 31 };
const gpu = { name: 'a GPU', software: false, pciId: null, features: [], limits, busy: null, rates: null };
const { flopsPerSecond: _, ...others } = builtInProfiles.software;
const rates = {
  flopsPerSecond: 7e9,
  memoryBytesPerSecond: others.memoryBytesPerSecond,
  hostBytesPerSecond: others.hostBytesPerSecond,
  dispatchSeconds: others.dispatchSeconds,
  copySeconds: others.copySeconds,
};
const devices: Devices = {
  adapters: [
    { ...gpu, id: 'one' },
    { ...gpu, id: 'two' },
    { ...gpu, id: 'swiftshader', name: 'SwiftShader', software: true, rates },
  ],
  error: null,
};

it('takes the rates that were measured, else those of the nearest built-in profile', () => {
  expect(profileFor('software', devices)).toMatchObject({ name: 'SwiftShader', flopsPerSecond: 7e9, calibrated: true });
  const { flopsPerSecond, calibrated, offsetAlignmentBytes } = profileFor('auto', devices);
  expect([flopsPerSecond, calibrated, offsetAlignmentBytes]).toEqual([
    builtInProfiles.h200.flopsPerSecond,
    undefined,
    32,
  ]);
  expect(profileFor('auto', undefined)).toBe(builtInProfiles.software);
});

it('knows over how many adapters a run spreads: GPUs of one name under auto, else one', () => {
  const alike = ['auto', 'one', 'software'].map((adapter) => profileFor(adapter, devices).alike);
  expect(alike).toEqual([2, 1, 1]);
});
