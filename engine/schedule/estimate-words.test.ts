import { expect, it } from 'vitest';
import { ratesWords, timeWords } from './estimate-words.ts';
import { builtInProfiles } from './profile.ts';

it.each([
  [0, '0 ms'],
  [0.0033, '0.0033 ms'],
  [1.84, '1.8 ms'],
  [1049, '1,000 ms'],
  [9999, '10,000 ms'],
  [10_400, '10 s'],
  [599_000, '600 s'],
  [1_100_000, '18 min'],
])('%d ms: %s', (ms, words) => expect(timeWords(ms)).toBe(words));

it('says whose rates they are', () => {
  const { h200, software } = builtInProfiles;
  expect(ratesWords(h200)).toBe('rates that were measured on one H200');
  expect(ratesWords(software)).toMatch(/^built-in rates, not measured here/);
  expect(ratesWords({ ...software, calibrated: true })).toBe('rates that were measured on this adapter');
});
