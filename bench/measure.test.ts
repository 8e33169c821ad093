import { expect, test } from 'vitest';
import { compare, measure, timesOf } from './measure.ts';

test('the median of an odd and of an even number of times', () => {
  expect(timesOf([3, 1, 2])).toEqual({ medianMs: 2, minMs: 1, maxMs: 3, runs: 3 });
  expect(timesOf([4, 1, 2, 3])).toEqual({ medianMs: 2.5, minMs: 1, maxMs: 4, runs: 4 });
  expect(() => timesOf([])).toThrow(RangeError);
});

test('warm-ups run but do not count', async () => {
  let calls = 0;
  const { runs } = await measure(() => calls++, 3, 2);
  expect([calls, runs]).toEqual([5, 3]);
});

test('two things are measured in turns', async () => {
  const order: string[] = [];
  await compare(
    () => order.push('a'),
    () => order.push('b'),
    2,
  );
  expect(order.join('')).toBe('ababab');
});
