import { expect, it } from 'vitest';
import { toCsv } from './csv.ts';

it('quotes what needs it and defuses formulas', () => {
  expect(
    toCsv([
      ['a,b', 'say "x"', 'two\nlines', null],
      ['=1+1', '@x', '-1', -1],
      [Number.NaN, Number.NEGATIVE_INFINITY, 0.5, '+'],
    ]),
  ).toBe(`"a,b","say ""x""","two\nlines",\r\n'=1+1,'@x,'-1,-1\r\nNaN,-Infinity,0.5,'+\r\n`);
});
