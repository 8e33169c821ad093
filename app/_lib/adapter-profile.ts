import { type AdapterProfile, builtInProfiles, type ProfileLimits, profileOf } from '../../engine/schedule/profile.ts';
import type { Devices } from './api.ts';
import type { Place } from './fit-here.ts';

export type Device = Devices['adapters'][number];

/** The adapter of this machine that a config's `adapter` stands for; null where there is none, and for the interpreter. */
export function deviceFor(adapter: unknown, devices: Devices | undefined): Device | null {
  const found = devices?.adapters ?? [];
  if (adapter === 'software') return found.find(({ software }) => software) ?? null;
  if (adapter === 'auto') return found[0] ?? null;
  return found.find(({ id, name, pciId }) => adapter === id || adapter === name || adapter === pciId) ?? null;
}

/** Where a run with this `adapter` would run, with the memory that is there; null where the machine does not say. */
export function placeFor(adapter: unknown, devices: Devices | undefined): Place | null {
  const device = deviceFor(adapter, devices);
  if (!devices || (!device && adapter !== 'interpreter')) return null;
  const { freeHostBytes } = devices;
  return { profile: profileFor(adapter, devices), memoryBytes: device?.memoryBytes ?? null, freeHostBytes };
}

/** The profile that a config's `adapter` stands for on this machine; a built-in one where the machine does not say. */
export function profileFor(adapter: unknown, devices: Devices | undefined): AdapterProfile {
  if (adapter === 'interpreter') return builtInProfiles.interpreter;
  const found = devices?.adapters ?? [];
  const device = deviceFor(adapter, devices);
  if (!device || !hasProfileLimits(device.limits)) return builtInProfiles.software;
  const { name, software, limits, tensorCores, rates } = device;
  // As ranks are placed: `auto` spreads them over GPUs of one name.
  const alike = adapter === 'auto' && !software ? found.filter((other) => other.name === name).length : 1;
  return { ...profileOf({ name, software, limits, tensorCores }, rates), alike };
}

function hasProfileLimits(limits: Record<string, number>): limits is Record<string, number> & ProfileLimits {
  return ['minStorageBufferOffsetAlignment', 'maxStorageBufferBindingSize', 'maxBufferSize'].every(
    (name) => typeof limits[name] === 'number',
  );
}

/** Why no run on this adapter can start here: this machine has none, and what to install; null where nothing is known against it. */
export function adapterHint(adapter: unknown, devices: Devices | undefined): string | null {
  return adapter === 'interpreter' ? null : (devices?.error ?? null);
}
