import { expect, it } from 'vitest';
import { comparedWith } from './compared-runs.ts';

const runs = [
  { id: 'c', group: 'g' },
  { id: 'b', group: 'g' },
  { id: 'a', group: null },
];

it('compares a continued run with the one that it continues', () => {
  expect(comparedWith({ id: 'c', parent: 'a', group: 'g' }, runs)).toEqual(['a', 'c']);
});

it('compares runs that were queued together, also once the parent is deleted', () => {
  expect(comparedWith({ id: 'c', parent: 'gone', group: 'g' }, runs)).toEqual(['b', 'c']);
  expect(comparedWith({ id: 'a', parent: null, group: null }, runs)).toEqual([]);
});
