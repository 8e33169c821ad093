import fc from 'fast-check';
import { expect, it } from 'vitest';
import { createBytePairs } from './byte-pairs.ts';

/** Every byte, then what merges: ids from 256. */
const bytes = Array.from({ length: 256 }, (_, byte) => [byte]);
const { encode, decode, tokenizer, vocabSize } = createBytePairs([...bytes, 'ab', 'abc', 'bc', 'aa', 'bca', ' ab']);
const [AB, ABC, BC, AA, , BLANK_AB] = [256, 257, 258, 259, 260, 261];
const byte = (character: string) => character.charCodeAt(0);

/** Merges as the definition says: the lowest pair of all, the leftmost of equals, one at a time. */
function merged(text: string): number[] {
  const tokens = ['ab', 'abc', 'bc', 'aa', 'bca', ' ab'];
  const rank = (pair: string) => (tokens.indexOf(pair) < 0 ? Number.POSITIVE_INFINITY : tokens.indexOf(pair));
  const parts = [...text];
  for (;;) {
    const ranks = parts.slice(1).map((part, i) => rank(parts[i] + part));
    const best = Math.min(...ranks);
    if (best === Number.POSITIVE_INFINITY)
      return parts.map((part) => (part.length > 1 ? 256 + rank(part) : byte(part)));
    const at = ranks.indexOf(best);
    parts.splice(at, 2, parts[at] + parts[at + 1]);
  }
}

it('merges the lowest id first, the leftmost of equals', () => {
  expect(encode('abc')).toEqual([ABC]);
  expect(encode('abcab ab')).toEqual([ABC, AB, BLANK_AB]);
  expect(encode('aaa')).toEqual([AA, byte('a')]);
  expect(encode('bbc')).toEqual([byte('b'), BC]);
  fc.assert(
    fc.property(fc.string({ unit: fc.constantFrom('a', 'b', 'c'), minLength: 1, maxLength: 60 }), (text) => {
      expect(encode(text)).toEqual(merged(text));
    }),
  );
});

it('takes a long word in n log n, and refuses one without end', () => {
  expect(encode('ab'.repeat(100_000))).toEqual(Array.from({ length: 100_000 }, () => AB));
  const part = tokenizer();
  expect(() => {
    for (let i = 0; i < 40; i++) part.push('ab'.repeat(10_000));
  }).toThrow(/^The text has 280000 characters in a row without a blank, from "abab/);
  expect(() => encode('-'.repeat(2 ** 18 + 1))).toThrow(/Use data.tokenizer word, or break its lines/);
});

it('writes bytes that are no text, and ids that are no token', () => {
  expect(decode([0xf0, 0x9f, 0x90, 0x8b])).toBe('🐋');
  expect(decode([0xf0, 0x9f])).toBe('\ufffd');
  expect(decode([byte('a'), vocabSize - 1, vocabSize])).toBe(`a<|endoftext|><${vocabSize}>`);
  // Nothing is kept from one call to the next.
  expect(decode([0x90, 0x8b])).toBe('\ufffd\ufffd');
});

it('is nothing of an empty text', () => {
  expect(encode('')).toEqual([]);
  expect(decode([])).toBe('');
});

it('takes blanks as Python does: U+0085 is one, a byte order mark is a sign', () => {
  const pairs = createBytePairs([...bytes, [0xef, 0xbb], '\ufeff', '.\ufeff', '\u0085', '.\u0085']);
  expect(pairs.encode('.\ufeff')).toEqual([258]);
  expect(pairs.encode('.\u0085')).toEqual([byte('.'), 259]);
});
