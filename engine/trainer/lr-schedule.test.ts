import { describe, expect, it } from 'vitest';
import { parseConfig } from '../config.ts';
import { lrFactor } from './lr-schedule.ts';

const at = (lrSchedule: object, steps: number[], optimizer: object = { kind: 'adam', lr: 0.1 }) => {
  const config = parseConfig({ lrSchedule, optimizer, trainer: { steps: 10 } });
  return steps.map((step) => lrFactor(config, step));
};

describe('lrFactor', () => {
  it('is 1 throughout when constant', () => {
    expect(at({ kind: 'constant' }, [0, 5, 9])).toEqual([1, 1, 1]);
  });

  it('warms up in equal steps and is whole at the last of them', () => {
    expect(at({ kind: 'constant', warmupSteps: 4 }, [0, 1, 3, 4])).toEqual([0.25, 0.5, 1, 1]);
  });

  it('falls along a half cosine to minLr, half way at half time', () => {
    const [start, middle, end] = at({ kind: 'cosine', minLr: 0.01 }, [0, 5, 10]);
    expect(start).toBe(1);
    expect(middle).toBeCloseTo(0.55, 12);
    expect(end).toBeCloseTo(0.1, 12);
  });

  it('falls along a line after the warm-up', () => {
    expect(at({ kind: 'linear', warmupSteps: 2 }, [1, 2, 6, 10])).toEqual([1, 1, 0.5, 0]);
  });

  it('is 0 at the end when the base rate is 0', () => {
    expect(at({ kind: 'linear' }, [10], { kind: 'sgd', lr: 0 })).toEqual([0]);
  });
});
