import type { CollectiveKind, RankReport, Traffic } from './collectives-plan.ts';
import { ratioTo } from './floor.ts';
import { timesOf } from './measure.ts';

/** A collective as it was measured. */
export interface CollectiveRow {
  readonly kind: CollectiveKind;
  /** Of the tensors of all units. */
  readonly bytes: number;
  readonly traffic: Traffic;
  readonly rates: Pick<RankReport, 'upBytesPerSecond' | 'downBytesPerSecond'>;
  readonly ms: readonly number[];
  readonly torchMs: readonly number[];
}

const WIDTHS = [14, 8, 8, 9, 10, 7, 7, 9, 10, 9, 6];
const HEADER = [
  ...['collective', 'up MB', 'down MB', 'floor ms', 'median ms', 'min', 'max', 'to floor'],
  ...['GB/s', 'torch ms', 'ratio'],
];

export function collectiveHeader(): string {
  return line(HEADER);
}

/** A row: a rank's bytes each way, their floor, ours, and GB/s of the tensors; torch's median and ours to it. */
export function collectiveLine({ kind, bytes, traffic, rates, ms, torchMs }: CollectiveRow): string {
  const { upBytes, downBytes } = traffic;
  const floorMs = 1000 * Math.max(upBytes / rates.upBytesPerSecond, downBytes / rates.downBytesPerSecond);
  const { medianMs, minMs, maxMs } = timesOf(ms);
  const theirs = torchMs.length ? timesOf(torchMs).medianMs : null;
  return line([
    kind,
    ...[upBytes, downBytes].map((each) => (each / 1e6).toFixed(0)),
    ...[floorMs, medianMs, minMs, maxMs].map((each) => each.toFixed(1)),
    (medianMs / floorMs).toFixed(2),
    (bytes / medianMs / 1e6).toFixed(1),
    theirs === null ? '' : theirs.toFixed(1),
    ratioTo(theirs, medianMs),
  ]);
}

function line(cells: readonly string[]): string {
  return cells
    .map((cell, i) => (i === 0 ? cell.padEnd(WIDTHS[i]) : cell.padStart(WIDTHS[i])))
    .join(' ')
    .trimEnd();
}
