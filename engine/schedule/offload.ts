import type { Draft } from './draft.ts';
import type { Action, HostCopy, StepPhase, Tensor } from './schedule.ts';

/** A device tensor and the host tensor of the same length that it is stored to. */
export interface Stored {
  readonly device: Tensor;
  readonly host: Tensor;
}

/** Stores whole tensors to the host, a staging slot at a time. */
export function listStore(draft: Draft, unit: string, phase: StepPhase, stored: readonly Stored[]): void {
  const { bytes } = stored[0].device;
  const most = Math.max(16, Math.floor(draft.profile.stagingSlotBytes / stored.length / 16) * 16);
  for (let offsetBytes = 0; offsetBytes < bytes; offsetBytes += most) {
    const length = Math.min(most, bytes - offsetBytes);
    const parts = stored.map(({ device, host }) => ({
      device: { tensor: device.id, offsetBytes, bytes: length },
      host: { tensor: host.id, offsetBytes, bytes: length },
    }));
    listHostCopy(draft, 'store', unit, phase, parts);
  }
}

/** One copy between host and device, through one staging slot but for what it keeps in buffers that the host maps. */
export function listHostCopy(
  draft: Draft,
  type: 'fetch' | 'store',
  unit: string,
  phase: StepPhase,
  parts: readonly HostCopy[],
): void {
  const list = (listed: readonly HostCopy[], actionOf: (bytes: number) => Action) => {
    if (listed.length === 0) return;
    draft.list({
      kind: type === 'fetch' ? 'upload' : 'download',
      lane: 'host',
      phase,
      label: `${type} ${unit}`,
      unit,
      visit: draft.nextVisit(),
      action: actionOf(listed.reduce((sum, part) => sum + part.device.bytes, 0)),
    });
  };
  const slot = (space: 'upload' | 'download', bytes: number) => draft.stagingSlot(space, 'offload', bytes);
  if (type === 'fetch') {
    list(parts, (bytes) => ({ type, parts, staging: slot('upload', bytes) }));
    return;
  }
  const isMapped = ({ host }: HostCopy) => draft.tensors[host.tensor].mapped === true;
  const staged = parts.filter((part) => !isMapped(part));
  const kept = parts.filter(isMapped);
  list(staged, (bytes) => ({ type, parts: staged, staging: slot('download', bytes) }));
  list(kept, () => ({ type: 'keep', parts: kept }));
}
