import type { PooledStat, Stat } from './meter.ts';

/** One line of numbers. The unit of each column is chosen by `unitOf`, so that lines of one metric share theirs. */
export interface Row {
  readonly label: string;
  readonly of: 'bytes' | 'count';
  readonly stat: Stat;
  readonly unitOf: Stat;
}

export interface Table {
  readonly heading: readonly string[];
  readonly firstColumn: string;
  /** Rows between two rules. */
  readonly groups: readonly (readonly Row[])[];
}

/** What the heading calls things: PyTorch's words, or ours for the same. */
export interface HeadingWords {
  readonly title: string;
  readonly ooms: string;
  readonly retries: string;
}

/** The two lines above the numbers. Words of any width up to 45, 21 and 26 leave the columns where PyTorch has them. */
export function heading(
  words: HeadingWords,
  { device, ooms, retries }: { readonly device: number; readonly ooms: number; readonly retries: number },
): string[] {
  return [
    `${words.title.padStart(45)}, device ID ${String(device).padEnd(17)} `,
    `${words.ooms.padStart(21)}: ${String(ooms).padEnd(12)} |` +
      `${words.retries.padStart(26)}: ${String(retries).padEnd(8)}  `,
  ];
}

/** The three lines of a metric: all, and by pool, in the units of all. */
export function pooled(label: string, of: Row['of'], stats: PooledStat): Row[] {
  const unitOf = stats.all;
  return [
    { label, of, stat: stats.all, unitOf },
    { label: '      from large pool', of, stat: stats.large, unitOf },
    { label: '      from small pool', of, stat: stats.small, unitOf },
  ];
}

/** A metric of one line. */
export function single(label: string, of: Row['of'], stat: Stat): Row {
  return { label, of, stat, unitOf: stat };
}

const WIDTH = 75;

/** A line of a heading. */
export function centred(text: string): string {
  const cut = text.length > WIDTH - 2 ? `${text.slice(0, WIDTH - 3)}…` : text;
  return cut.padStart(Math.ceil((WIDTH + cut.length) / 2)).padEnd(WIDTH);
}

/**
 * A table as torch.cuda.memory_summary() prints it, newline at its end: 77 columns, numbers rounded down, each column of a
 * group in the largest unit that leaves the group's first number below 768 Ki (counts: below 750 thousand) or a step more.
 */
export function renderTable({ heading, firstColumn, groups }: Table): string {
  const rule = '-'.repeat(WIDTH);
  const end = '='.repeat(WIDTH);
  const columns = ['Cur Usage', 'Peak Usage', 'Tot Alloc', 'Tot Freed'].map((name) => centredIn(name, 12)).join('|');
  const lines = [
    end,
    ...heading.flatMap((line, i) => (i === 0 ? [line] : [rule, line])),
    end,
    `${centredIn(firstColumn, 23)}|${columns}`,
    ...groups.flatMap((rows) => [rule, ...rows.map(renderRow)]),
    end,
  ];
  return lines.map((line) => `|${line}|\n`).join('');
}

/** Centred as Python's format does: the odd space on the right. */
function centredIn(text: string, width: number): string {
  return text.padStart(Math.floor((width + text.length) / 2)).padEnd(width);
}

function renderRow({ label, of, stat, unitOf }: Row): string {
  const format = of === 'bytes' ? bytesIn : countIn;
  const cells = (['current', 'peak', 'allocated', 'freed'] as const).map((c) => format(stat[c], unitOf[c]));
  return ` ${[label.padEnd(21), ...cells].join(' | ')} `;
}

function bytesIn(bytes: number, reference: number): string {
  const [value, unit] = scale(bytes, reference, ['B  ', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'], 1024, 768 * 1024);
  return `${String(value).padStart(6)} ${unit}`;
}

function countIn(count: number, reference: number): string {
  const [value, unit] = scale(count, reference, [' ', 'K', 'M'], 1000, 750 * 1000);
  return `${String(value).padStart(7)} ${unit} `;
}

function scale(value: number, reference: number, units: string[], step: number, limit: number): [number, string] {
  let power = 0;
  for (let left = reference; left >= limit && power < units.length - 1; left /= step) power++;
  return [Math.floor(value / step ** power), units[power]];
}
