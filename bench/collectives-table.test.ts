import { expect, test } from 'vitest';
import { collectiveLine } from './collectives-table.ts';

const row = {
  ...({ kind: 'all-gather', bytes: 1e9, ms: [20, 30, 40] } as const),
  traffic: { upBytes: 5e8, downBytes: 1e9 },
  rates: { upBytesPerSecond: 50e9, downBytesPerSecond: 50e9 },
};

test('the floor is the slower direction, and torch is beside it', () => {
  const cells = (torchMs: number[]) => collectiveLine({ ...row, torchMs }).split(/\s+/);
  const own = ['all-gather', '500', '1000', '20.0', '30.0', '20.0', '40.0', '1.50', '33.3'];
  expect(cells([10, 20, 15])).toEqual([...own, '15.0', '2.00']);
  expect(cells([])).toEqual(own);
});
