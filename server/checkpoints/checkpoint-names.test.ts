import { expect, it } from 'vitest';
import { safeStem } from './checkpoint-names.ts';

it('a long name is cut between characters, by their number and by their bytes', () => {
  expect(safeStem('a'.repeat(100), 'none')).toBe('a'.repeat(60));
  expect(safeStem('漢'.repeat(60), 'none')).toBe('漢'.repeat(26));
  // Two code units and four bytes each: the cut would come within one, whatever stands before it.
  for (const start of ['', 'a', 'ab', 'abc']) {
    const stem = safeStem(start + '𠮷'.repeat(60), 'none');
    expect(Buffer.from(stem).toString(), start).toBe(stem);
    expect(stem).toMatch(new RegExp(`^${start}𠮷{19,20}$`, 'u'));
    const odd = safeStem(`${'a'.repeat(58)}${start}𠮷𠮷`, 'none');
    expect(Buffer.from(odd).toString(), start).toBe(odd);
  }
});

it('what is no letter, digit or mark of a name becomes a dash, and nothing is hidden', () => {
  expect(safeStem('..-my model (2)', 'none')).toBe('my-model-2-');
  expect(safeStem('\ud842', 'none')).toBe('none');
  expect(safeStem('...', 'none')).toBe('none');
});
