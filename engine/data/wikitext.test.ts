import { readFileSync } from 'node:fs';
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { createTokenizer, createVocabulary, tokenizeLines } from './wikitext.ts';

const testdata = new URL('../testdata/', import.meta.url);

interface Tokenized {
  ids: number[];
  words: string[];
}

const python = JSON.parse(readFileSync(new URL('data/python-lines.json', testdata), 'utf8')) as {
  spaces: number[];
  cases: (Tokenized & { text: string })[];
};

function tokenize(...parts: string[]): Tokenized {
  const vocabulary = createVocabulary();
  const tokenizer = createTokenizer(vocabulary);
  for (const part of parts) tokenizer.push(part);
  return { ids: [...tokenizer.finish()], words: [...vocabulary.words] };
}

it('gives the WikiText2 class’s tokens for the sample text', () => {
  const expected = JSON.parse(readFileSync(new URL('sample_tokens.json', testdata), 'utf8')) as Tokenized;
  expect(tokenize(readFileSync(new URL('sample.txt', testdata), 'utf8'))).toEqual(expected);
});

it('splits words at exactly the characters that Python does', () => {
  const splits: number[] = [];
  for (let code = 0; code < 0x10000; code++) {
    const surrogate = code >= 0xd800 && code <= 0xdfff;
    if (!surrogate && tokenize(`a${String.fromCharCode(code)}b`).words.includes('a')) splits.push(code);
  }
  expect(splits).toEqual(python.spaces);
});

it.each(python.cases)('reads lines as Python does: $text', ({ text, ids, words }) => {
  expect(tokenize(text)).toEqual({ ids, words });
});

it('gives the same tokens however the text is cut', () => {
  const text = fc.string({
    unit: fc.constantFrom('a', 'bc', ' ', '\n', '\r', '\t', '\u2028', '\u{1f40b}'),
    maxLength: 30,
  });
  fc.assert(
    fc.property(text, fc.array(fc.nat(60), { maxLength: 5 }), (whole, cuts) => {
      const at = [0, ...cuts.filter((cut) => cut < whole.length).sort((a, b) => a - b)];
      const parts = at.map((from, i) => whole.slice(from, at[i + 1]));
      expect(tokenize(...parts)).toEqual(tokenize(whole));
    }),
    { seed: 1, numRuns: 300 },
  );
});

it('goes on with the ids of a vocabulary that has words', () => {
  const vocabulary = createVocabulary();
  expect([...tokenizeLines('a b\n', vocabulary)]).toEqual([0, 1, 2]);
  expect([...tokenizeLines('b c', vocabulary)]).toEqual([1, 3, 2]);
});
