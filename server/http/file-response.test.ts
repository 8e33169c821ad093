import { describe, expect, it } from 'vitest';
import { csvLine } from './csv.ts';
import { parseRange } from './file-response.ts';

describe('parseRange', () => {
  it('gives the bytes asked for', () => {
    expect(parseRange('bytes=0-0', 10)).toEqual({ start: 0, end: 0 });
    expect(parseRange('bytes=4-', 10)).toEqual({ start: 4, end: 9 });
    expect(parseRange('bytes=4-99', 10)).toEqual({ start: 4, end: 9 });
    expect(parseRange('bytes=-3', 10)).toEqual({ start: 7, end: 9 });
    expect(parseRange('bytes=-99', 10)).toEqual({ start: 0, end: 9 });
  });

  it('refuses what lies behind the end', () => {
    expect(parseRange('bytes=10-', 10)).toBe('unsatisfiable');
    expect(parseRange('bytes=-0', 10)).toBe('unsatisfiable');
    expect(parseRange('bytes=0-', 0)).toBe('unsatisfiable');
  });

  it('answers with the whole file to what is no single range', () => {
    for (const header of [
      undefined,
      '',
      'bytes=',
      'bytes=-',
      'bytes=5-2',
      'bytes=0-1,3-4',
      'items=0-1',
      'bytes=a-b',
      'bytes=0x1-2',
    ])
      expect(parseRange(header, 10)).toBeNull();
  });
});

describe('csvLine', () => {
  it('writes numbers and the words for those that are not finite as they are', () => {
    expect(csvLine([-1.5, 0, 'NaN', '-Infinity', 1e21])).toBe('-1.5,0,NaN,-Infinity,1e+21\r\n');
  });

  it('quotes what would end a cell and disarms what would be a formula', () => {
    expect(csvLine(['a,b', 'say "x"', 'two\nlines'])).toBe('"a,b","say ""x""","two\nlines"\r\n');
    expect(csvLine(['=1+1', '+1', '-1', '@a', '\t=1', '\r=1'])).toBe(`'=1+1,'+1,'-1,'@a,'\t=1,"'\r=1"\r\n`);
  });
});
