import { expect, test } from 'vitest';
import { checkpointLines } from './checkpoint-table.ts';

const row = (ms: number[], growthBytes: number | null = 2 ** 21) => ({ bytes: 2e9, ms, growthBytes });

test('a rate is beside that of plain work on as many bytes, and of torch for the same', () => {
  const rows = new Map([
    ['plain write, synced', row([1000])],
    ['plain read', row([500])],
    ['save full by one rank', row([2000, 4000, 1000])],
    ['save full by 2 ranks', row([2000])],
    ['save sharded by 2 ranks', row([1000])],
    ['load full by one rank', row([1000])],
    ['full to sharded', row([1000])],
    ['torch.save, synced', row([4000], null)],
    ['DCP save by 2 ranks', row([2000], null)],
  ]);
  const cells = checkpointLines(rows).map((line) => line.split(/\s\s+/));
  const of = (name: string) => cells.find(([first]) => first === name)?.slice(1);
  expect(of('plain read')).toEqual(['4.00', '4.00', '4.00', '2.00', '2']);
  expect(of('save full by one rank')).toEqual(['1.00', '0.50', '2.00', '2.00', '0.50', '2.00', '2']);
  expect(of('save full by 2 ranks')).toEqual(['1.00', '1.00', '1.00', '2.00', '0.50', '2']);
  expect(of('save sharded by 2 ranks')).toEqual(['2.00', '2.00', '2.00', '2.00', '1.00', '2.00', '2']);
  expect(of('load full by one rank')).toEqual(['2.00', '2.00', '2.00', '2.00', '0.50', '2']);
  expect(of('full to sharded')).toEqual(['2.00', '2.00', '2.00', '2.00', '2']);
  expect(of('torch.save, synced')).toEqual(['0.50', '0.50', '0.50', '2.00', '0.25']);
});
