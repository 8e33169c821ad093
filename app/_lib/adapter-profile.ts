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
  const { name, software, limits, rates } = device;
  // As ranks are placed: `auto` spreads them over GPUs of one name.
  const alike = adapter === 'auto' && !software ? found.filter((other) => other.name === name).length : 1;
  return { ...profileOf({ name, software, limits }, rates), alike };
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
