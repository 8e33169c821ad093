import { StudioError } from '../errors.ts';
import type { VariantChoices } from '../ops/kernel.ts';
import { openDevice } from '../runtime/device.ts';
import { type TunedCall, tuneVariants } from '../runtime/tune.ts';
import { openAdapter } from './adapters.ts';

/**
 * Opens a real GPU in this process and measures the kernel variants of each class of shapes. Throws StudioError
 * `no-adapter`, and for a software adapter, which runs none of them, too.
 */
export async function tuneAdapter(
  id: string,
  onMeasured: (call: TunedCall, variant: string, seconds: number) => void,
): Promise<VariantChoices> {
  const { adapter, entry } = await openAdapter(id);
  if (entry.software)
    throw new StudioError('no-adapter', `${entry.name} is software: it has one variant of each kernel`);
  const open = await openDevice(adapter);
  try {
    return await tuneVariants(open, undefined, onMeasured);
  } finally {
    open.close();
  }
}
