import { CONTROL_ELEMENTS } from '../ops/control.ts';
import type { Draft } from './draft.ts';
import type { Tensor } from './schedule.ts';

/** Lists the end of a step: the host reads its control values, through a staging slot of at least `slotBytes`. */
export function listReport(draft: Draft, control: Tensor, slotBytes: number): void {
  const bytes = CONTROL_ELEMENTS * 4;
  const slot = draft.stagingSlot('download', 'report', slotBytes, 1);
  draft.list({
    kind: 'download',
    lane: 'host',
    phase: 'optimizer',
    label: 'report',
    unit: 'root',
    visit: draft.nextVisit(),
    action: {
      type: 'report',
      control: draft.whole(control),
      staging: { ...slot, bytes },
      region: draft.region('report', bytes, 1),
    },
  });
}
