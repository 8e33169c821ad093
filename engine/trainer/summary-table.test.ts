import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import type { Stat } from './meter.ts';
import { heading, pooled, type Row, renderTable, single } from './summary-table.ts';

const words = { title: 'PyTorch CUDA memory summary', ooms: 'CUDA OOMs', retries: 'cudaMalloc retries' };
const units: Readonly<Record<string, number>> = { B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30 };

/** The numbers that a printed table shows, in bytes and counts, in its order. */
function parse(text: string) {
  const lines = text.split('\n');
  const numberAfter = (word: string) => Number(new RegExp(`${word}:? +(\\d+)`).exec(text)![1]);
  const rows = lines.flatMap((line) => {
    const cells = line.split('|').map((cell) => cell.trim());
    if (cells.length !== 7 || cells[1] === 'Metric') return [];
    const [current, peak, allocated, freed] = cells.slice(2, 6).map((cell) => {
      const [value, unit] = cell.split(' ');
      return Number(value) * (unit ? units[unit] : 1);
    });
    const of: Row['of'] = / Ki?B? | B /.test(line) ? 'bytes' : 'count';
    return [{ label: cells[1], of, stat: { current, peak, allocated, freed } satisfies Stat }];
  });
  return {
    device: numberAfter('device ID'),
    ooms: numberAfter('OOMs'),
    retries: numberAfter('retries'),
    metrics: rows.flatMap((row, i) => {
      if (row.label.startsWith('from')) return [];
      const pools = rows.slice(i + 1, i + 3).filter((r) => r.label.startsWith('from'));
      if (pools.length < 2) return [[single(row.label, row.of, row.stat)]];
      return [pooled(row.label, row.of, { all: row.stat, large: pools[0].stat, small: pools[1].stat })];
    }),
  };
}

test.each(['fabric_fsdp_full_ws1', 'fabric_fsdp_sharded_ws1'])("PyTorch's own table of %s, to the byte", (name) => {
  const printed = readFileSync(
    new URL(`../testdata/demo-transformer/${name}.memory_summary.txt`, import.meta.url),
    'utf8',
  );
  const { metrics, ...counts } = parse(printed);
  expect(metrics.map((rows) => rows.length)).toEqual([3, 3, 3, 3, 3, 3, 3, 3, 3, 1, 1]);
  const ours = renderTable({ heading: heading(words, counts), firstColumn: 'Metric', groups: metrics });
  expect(ours).toBe(printed);
});

const bytes = (current: number, peak: number, allocated: number, freed: number): Stat => ({
  current,
  peak,
  allocated,
  freed,
});

function cells(row: Row): string[] {
  const lines = renderTable({ heading: ['x'], firstColumn: 'Metric', groups: [[row]] }).split('\n');
  return lines[lines.length - 3].split('|').slice(2, 6);
}

test('a unit is left at 768 of the next but one, and numbers are rounded down', () => {
  const Ki = 1024;
  expect(cells(single('x', 'bytes', bytes(768 * Ki - 1, 768 * Ki, 768 * Ki * Ki - 1, 768 * Ki * Ki)))).toEqual([
    ' 786431 B   ',
    '    768 KiB ',
    ' 786431 KiB ',
    '    768 MiB ',
  ]);
  expect(cells(single('x', 'count', bytes(749_999, 750_000, 749_999_999, 750_000_000)))).toEqual([
    '  749999    ',
    '     750 K  ',
    '  749999 K  ',
    '     750 M  ',
  ]);
});

test('the pools of a metric are in the units of all of it', () => {
  const all = bytes(2 ** 30, 0, 0, 0);
  const [, large, small] = pooled('x', 'bytes', { all, large: all, small: bytes(2 ** 20 - 1, 0, 0, 0) });
  expect(cells(large)[0]).toBe('   1024 MiB ');
  expect(cells(small)[0]).toBe('      0 MiB ');
});
