import { describe, expect, it } from 'vitest';
import * as format from './format.ts';

describe('numbers as the studio shows them', () => {
  it('keeps three significant digits of bytes and never shows 1000 of a unit', () => {
    expect([0, 512, 1023, 1024, 9_657_344, 123 * 2 ** 20, 1023.9 * 2 ** 20].map(format.formatBytes)).toEqual([
      '0 B',
      '512 B',
      '1.00 KiB',
      '1.00 KiB',
      '9.21 MiB',
      '123 MiB',
      '1.00 GiB',
    ]);
    expect(format.formatBytes(null)).toBe('–');
    expect(format.formatExactBytes(9_657_344)).toBe('9,657,344 B');
  });

  it('says a range in one unit, and how far a prediction was off', () => {
    expect(format.formatMsRange(1660, 2204)).toBe('1.66–2.20 s');
    expect(format.formatMsRange(12.34, 999)).toBe('12.3–999 ms');
    expect(format.formatMsRange(640, 1030)).toBe('640 ms – 1.03 s');
    expect(
      [
        [3400, 170],
        [103, 100],
        [50, 100],
        [13, 10],
      ].map(([m, p]) => format.formatAgainst(m, p)),
    ).toEqual(['20× longer', 'as predicted', '2.0× shorter', '1.3× longer']);
  });

  it('says numbers that are not finite as words', () => {
    expect(['NaN', 'Infinity', '-Infinity'].map((v) => format.formatLoss(v as 'NaN'))).toEqual([
      'NaN',
      'Infinity',
      '-Infinity',
    ]);
    expect([4.70421, 0, 0.00012, null].map(format.formatLoss)).toEqual(['4.7042', '0.0000', '1.200e-4', '–']);
  });

  it('changes unit where a number would round up to the next', () => {
    expect([0.42, 12.34, 999.4, 999.6, 61_000].map(format.formatMs)).toEqual([
      '0.42 ms',
      '12.3 ms',
      '999 ms',
      '1.00 s',
      '61.0 s',
    ]);
    expect([40_000, 60_000, 200_000, 7_500_000].map(format.formatDuration)).toEqual([
      '40 s',
      '1 min',
      '3 min 20 s',
      '2 h 5 min',
    ]);
  });

  it('estimates the time left only when there is a pace', () => {
    expect(format.timeLeftMs(1, 10, 20)).toBeNull();
    expect(format.timeLeftMs(4, 10, 20)).toBe(120);
    expect(format.timeLeftMs(10, 10, 20)).toBeNull();
    expect(format.formatRatio(43, 100)).toBe('0.43×');
    expect(format.formatRatio(43, null)).toBe('–');
  });

  it('tells how long ago', () => {
    const now = Date.parse('2026-11-29T12:00:00Z');
    expect(format.formatAgo('2026-11-29T11:59:40Z', now)).toBe('just now');
    expect(format.formatAgo('2026-11-29T11:20:00Z', now)).toBe('40 min ago');
    expect(format.formatAgo('2026-11-28T11:20:00Z', now)).toBe('yesterday');
  });
});
