import { timesOf } from './measure.ts';

/** One thing as it was measured. */
export interface CheckpointRow {
  readonly bytes: number;
  readonly ms: readonly number[];
  /** How far a process's memory grew; null for torch's. */
  readonly growthBytes: number | null;
}

const WIDTHS = [30, 8, 7, 7, 7, 9, 9, 10];
const HEADER = ['GB/s', 'median', 'min', 'max', 'GB', 'to plain', 'to torch', 'grew, MiB'];

/** What moves bytes as this does and does nothing else with them. */
function plainOf(name: string): string {
  if (name.startsWith('save') || name.startsWith('torch.save') || name.startsWith('DCP save'))
    return 'plain write, synced';
  return / to |upload/.test(name) ? 'plain copy, synced' : 'plain read';
}

/** What torch has for it, by as many ranks. */
function torchOf(name: string): string | null {
  const by = /^(save|load) (full|sharded) by (.*)$/.exec(name);
  if (!by) return null;
  const [, action, kind, ranks] = by;
  if (kind === 'sharded') return `DCP ${action} by ${ranks}`;
  if (ranks !== 'one rank') return null;
  return action === 'save' ? 'torch.save, synced' : 'torch.load';
}

/**
 * The table: each row's GB/s, and its rate to that of a plain write, read or copy, and to torch's for the same, of those that
 * were measured.
 */
export function checkpointLines(rows: ReadonlyMap<string, CheckpointRow>): string[] {
  const rate = (name: string | null) => {
    const row = name === null ? undefined : rows.get(name);
    return row && row.bytes / 1e6 / timesOf(row.ms).medianMs;
  };
  const lines = [...rows].map(([name, { bytes, ms, growthBytes }]) => {
    const { minMs, maxMs } = timesOf(ms);
    const own = rate(name)!;
    const to = (other: number | undefined) => (other === undefined ? '' : (own / other).toFixed(2));
    return line([
      name,
      ...[own, bytes / 1e6 / maxMs, bytes / 1e6 / minMs, bytes / 1e9].map((each) => each.toFixed(2)),
      name.startsWith('plain') ? '' : to(rate(plainOf(name))),
      to(rate(torchOf(name))),
      growthBytes === null ? '' : (growthBytes / 2 ** 20).toFixed(0),
    ]);
  });
  return [line(HEADER), ...lines];
}

function line(cells: readonly string[]): string {
  return cells
    .map((cell, i) => (i === 0 ? cell.padEnd(WIDTHS[i]) : cell.padStart(WIDTHS[i])))
    .join(' ')
    .trimEnd();
}
