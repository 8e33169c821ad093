import { StudioError } from '../errors.ts';
import { type AdapterProfile, profileOf } from '../schedule/profile.ts';
import { KernelCache } from './kernel-cache.ts';

/** A device with what ranks that share it have in common. */
export interface OpenDevice {
  readonly device: GPUDevice;
  readonly kernels: KernelCache;
  /** Rejects when the device is lost or reports an error that no scope caught; never resolves. */
  readonly failed: Promise<never>;
  close(): void;
}

/** Limits that a run asks of the adapter; all as high (or, for alignments, as low) as it has them. */
const LIMITS = [
  'maxBufferSize',
  'maxStorageBufferBindingSize',
  'maxStorageBuffersPerShaderStage',
  'maxComputeInvocationsPerWorkgroup',
  'maxComputeWorkgroupSizeX',
  'maxComputeWorkgroupStorageSize',
  'minStorageBufferOffsetAlignment',
] as const;

/** The profile of an adapter for the planner. */
export function adapterProfile(adapter: GPUAdapter, name: string, software: boolean): AdapterProfile {
  return profileOf({ name, software, limits: adapter.limits });
}

/** Opens the device of an adapter. Throws StudioError `no-adapter` when it refuses. */
export async function openDevice(adapter: GPUAdapter): Promise<OpenDevice> {
  const requiredLimits = Object.fromEntries(LIMITS.map((name) => [name, adapter.limits[name]]));
  let device: GPUDevice;
  try {
    device = await adapter.requestDevice({ requiredLimits });
  } catch (cause) {
    throw new StudioError('no-adapter', `the adapter gives no device: ${(cause as Error).message}`, {}, { cause });
  }
  let closing = false;
  const failed = new Promise<never>((_, reject) => {
    device.addEventListener('uncapturederror', (event) => {
      event.preventDefault();
      reject(new StudioError('internal', `the device reports: ${event.error.message}`));
    });
    void device.lost.then(({ reason, message }) => {
      if (!closing) reject(new StudioError('device-lost', `the device was lost (${reason}): ${message}`));
    });
  });
  failed.catch(() => undefined);
  const close = () => {
    closing = true;
    device.destroy();
  };
  return { device, kernels: new KernelCache(device), failed, close };
}
