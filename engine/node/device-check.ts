import { StudioError } from '../errors.ts';
import { type AdapterEntry, type HeldMemory, readHeldMemory } from './adapters.ts';

/** What the check takes of the device for a moment: more than anything else that this process takes meanwhile. */
const WEIGHT_BYTES = 256 * 2 ** 20;
/** A reading that grew by this much shows the weight; drivers round, and count their own tables. */
const SHOWS_BYTES = WEIGHT_BYTES / 2;

/**
 * Makes sure that a device is the one that was assigned, where its driver offers several: Dawn does not say which it opened,
 * so some of its memory is taken and the driver is asked, by PCI id, where that lies. Two identical GPUs differ in nothing
 * else. Throws StudioError `no-adapter` that names the one assigned and the one got.
 */
export async function refuseOtherDevice(
  assigned: Pick<AdapterEntry, 'id' | 'name' | 'icdPath'>,
  device: GPUDevice,
  read: (icdPath: string) => Promise<readonly HeldMemory[]> = readHeldMemory,
): Promise<void> {
  const before = await read(assigned.icdPath);
  if (before.length < 2) return;
  const weight = device.createBuffer({ size: WEIGHT_BYTES, usage: GPUBufferUsage.COPY_DST });
  try {
    // Memory that nothing has touched may not be there yet.
    const encoder = device.createCommandEncoder();
    encoder.clearBuffer(weight);
    device.queue.submit([encoder.finish()]);
    await device.queue.onSubmittedWorkDone();
    refuseGrowthElsewhere(assigned, before, await read(assigned.icdPath));
  } finally {
    weight.destroy();
    // A destroyed buffer is given back after a later submit.
    device.queue.submit([]);
  }
}

/** Throws when it was not the assigned device of which this process now holds more than before. */
export function refuseGrowthElsewhere(
  assigned: Pick<AdapterEntry, 'id' | 'name'>,
  before: readonly HeldMemory[],
  after: readonly HeldMemory[],
): void {
  if (after.some(({ bytes }) => bytes === null)) return;
  const grown = after.filter(({ id, bytes }) => {
    const was = before.find((other) => other.id === id)?.bytes ?? 0;
    return (bytes ?? 0) - was >= SHOWS_BYTES;
  });
  if (grown.some(({ id }) => id === assigned.id)) return;
  const got = grown[0];
  throw new StudioError(
    'no-adapter',
    `This rank was given ${assigned.name} (${assigned.id}), but the device that Vulkan opened is ` +
      `${got ? `${got.name} (${got.id})` : 'none that the driver lists'}. ` +
      'Set adapter to the id of one GPU, or hide the other from this process.',
    { assigned: assigned.id, got: got?.id ?? null },
  );
}
