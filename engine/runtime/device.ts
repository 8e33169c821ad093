import { StudioError } from '../errors.ts';
import { type AdapterProfile, profileOf } from '../schedule/profile.ts';
import type { AdapterRates } from '../schedule/rates.ts';
import { KernelCache } from './kernel-cache.ts';

/** A device with what ranks that share it have in common. */
export interface OpenDevice {
  readonly device: GPUDevice;
  readonly kernels: KernelCache;
  /**
   * Awaits what the device or a peer has to do. Rejects with StudioError `device-lost` or `internal` as soon as the device
   * is lost or reports an error that no scope caught.
   */
  guard<T>(work: Promise<T>): Promise<T>;
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

/** Features that are used where the adapter has them: times on the device's own clock, halves, tensor cores. */
const FEATURES = ['timestamp-query', 'shader-f16', 'subgroups', 'chromium-experimental-subgroup-matrix'] as const;

/** The profile of an adapter for the planner, with the rates measured on it if there are any. */
export function adapterProfile(
  adapter: GPUAdapter,
  name: string,
  software: boolean,
  rates: AdapterRates | null = null,
): AdapterProfile {
  return profileOf({ name, software, limits: adapter.limits }, rates);
}

/** Opens the device of an adapter. Throws StudioError `no-adapter` when it refuses. */
export async function openDevice(adapter: GPUAdapter): Promise<OpenDevice> {
  const requiredLimits = Object.fromEntries(LIMITS.map((name) => [name, adapter.limits[name]]));
  const requiredFeatures = FEATURES.filter((name) => adapter.features.has(name)) as GPUFeatureName[];
  let device: GPUDevice;
  try {
    device = await adapter.requestDevice({ requiredLimits, requiredFeatures });
  } catch (cause) {
    throw new StudioError('no-adapter', `the adapter gives no device: ${(cause as Error).message}`, {}, { cause });
  }
  let closing = false;
  const failure = new DeviceFailure();
  device.addEventListener('uncapturederror', (event) => {
    event.preventDefault();
    failure.fail(new StudioError('internal', `the device reports: ${event.error.message}`));
  });
  void device.lost.then(({ reason, message }) => {
    if (!closing) failure.fail(new StudioError('device-lost', `the device was lost (${reason}): ${message}`));
  });
  const close = () => {
    closing = true;
    device.destroy();
  };
  return { device, kernels: new KernelCache(device), guard: (work) => failure.guard(work), close };
}

/** How long an error of work on the device may wait for the device to say why. */
const EXPLANATION_MS = 1000;

/** The end of a device, for whoever waits for it. What is over is forgotten: a long run does not grow. */
export class DeviceFailure {
  private error: StudioError | null = null;
  private readonly waiting = new Set<(error: StudioError) => void>();

  fail(error: StudioError): void {
    this.error ??= error;
    for (const reject of this.waiting) reject(this.error);
    this.waiting.clear();
  }

  guard<T>(work: Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      this.waiting.add(reject);
      const settle = (end: () => void) => {
        this.waiting.delete(reject);
        end();
      };
      work.then(
        (value) => settle(() => resolve(value)),
        (error) => {
          // A map that a lost device drops says less than the loss itself, which may be told later.
          if (error instanceof StudioError || this.error) settle(() => reject(error));
          else setTimeout(() => settle(() => reject(error)), EXPLANATION_MS);
        },
      );
      if (this.error) settle(() => reject(this.error));
    });
  }
}
