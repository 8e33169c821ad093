import { type AdapterProfile, builtInProfiles, type ProfileLimits, profileOf } from '../../engine/schedule/profile.ts';
import type { Devices } from './api.ts';

/** The profile that a config's `adapter` stands for on this machine; a built-in one where the machine does not say. */
export function profileFor(adapter: unknown, devices: Devices | undefined): AdapterProfile {
  if (adapter === 'interpreter') return builtInProfiles.interpreter;
  const found = devices?.adapters ?? [];
  const device =
    adapter === 'software'
      ? found.find(({ software }) => software)
      : adapter === 'auto'
        ? found[0]
        : found.find(({ id, name, pciId }) => adapter === id || adapter === name || adapter === pciId);
  if (!device || !hasProfileLimits(device.limits)) return builtInProfiles.software;
  return profileOf({ name: device.name, software: device.software, limits: device.limits });
}

function hasProfileLimits(limits: Record<string, number>): limits is Record<string, number> & ProfileLimits {
  return ['minStorageBufferOffsetAlignment', 'maxStorageBufferBindingSize', 'maxBufferSize'].every(
    (name) => typeof limits[name] === 'number',
  );
}
