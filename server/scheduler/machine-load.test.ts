import { execFileSync } from 'node:child_process';
import { expect, it } from 'vitest';
import { readCoreTicks, shareOfOthers } from './machine-load.ts';

it('counts neither what is idle nor what is its own', () => {
  const before = { total: 1000, idle: 400, own: 100 };
  expect(shareOfOthers(before, { total: 1200, idle: 500, own: 150 })).toBe(0.25);
  expect(shareOfOthers(before, { total: 1200, idle: 600, own: 100 })).toBe(0);
  // Counted at different moments, its own may seem more than all.
  expect(shareOfOthers(before, { total: 1200, idle: 590, own: 120 })).toBe(0);
  expect(shareOfOthers(before, before)).toBe(0);
  expect(shareOfOthers(null, before)).toBe(0);
});

it('a process that it started counts as its own once it has ended', () => {
  const before = readCoreTicks();
  execFileSync(process.execPath, [
    '-e',
    'const t = process.cpuUsage().user; while (process.cpuUsage().user < t + 120_000);',
  ]);
  const after = readCoreTicks();
  if (!before || !after) throw new Error('no /proc');
  // 120 ms are 12 ticks.
  expect(after.own - before.own).toBeGreaterThanOrEqual(10);
  expect(after.total).toBeGreaterThan(before.total);
  expect(after.idle).toBeGreaterThanOrEqual(before.idle);
});
