import { describe, expect, test } from 'vitest';
import { CONTROL_ELEMENTS } from '../control.ts';
import { setStep } from './dropout.cases.ts';
import { dropout } from './dropout.ts';
import { dropoutFactor, dropoutMask } from './dropout-mask.ts';

const n = 20_000;

function kept(p: number, { step = 0, seed = 1, site = 0, rank = 0 } = {}): boolean[] {
  const control = new Float32Array(CONTROL_ELEMENTS);
  setStep(control, step);
  const mask = dropoutMask(control, p, seed, site, rank);
  return Array.from({ length: n }, (_, i) => dropoutFactor(mask, i) !== 0);
}

/** Share of elements on which two masks agree: p² + (1 − p)² if they are independent. */
function agreement(a: boolean[], b: boolean[]): number {
  return a.filter((value, i) => value === b[i]).length / n;
}

describe('mask', () => {
  test.each([0, 0.1, 0.2, 0.5, 0.9])('drops a share of %s', (p) => {
    const share = kept(p).filter((k) => !k).length / n;
    expect(Math.abs(share - p)).toBeLessThan(4 * Math.sqrt((p * (1 - p)) / n) + 1e-12);
  });

  test('is independent of its neighbour and of the mask of any other step, seed, site and rank', () => {
    const mask = kept(0.5);
    const others = [
      kept(0.5, { step: 1 }),
      kept(0.5, { seed: 2 }),
      kept(0.5, { site: 1 }),
      kept(0.5, { rank: 1 }),
      [...mask.slice(1), mask[0]],
      [...mask.slice(64), ...mask.slice(0, 64)],
    ];
    for (const other of others) expect(Math.abs(agreement(mask, other) - 0.5)).toBeLessThan(4 * Math.sqrt(0.25 / n));
  });

  test('stays the same: saved runs are resumed with it', () => {
    const bits = kept(0.5, { step: 3, seed: 42, site: 5, rank: 1 }).slice(0, 32).map(Number).join('');
    expect(bits).toBe('11100111011010010110011001111011');
  });
});

test('kept elements are scaled so that the mean stays', () => {
  const control = new Float32Array(CONTROL_ELEMENTS);
  const out = new Float32Array(n);
  const params = { n, dropout: 0.2, seed: 9, site: 1, rank: 0 };
  dropout.run([new Float32Array(n).fill(4), control, out], params);
  expect(new Set(out)).toEqual(new Set([0, 5]));
  expect(out.reduce((sum, value) => sum + value, 0) / n).toBeCloseTo(4, 1);
});
