import { expect, it } from 'vitest';
import { invalidUtf8At } from './utf8.ts';

const text = 'a é € \u{1f40b} \ufeff \ufffd ';
const valid = [...new TextEncoder().encode(text)];

it('accepts every length of character, a byte order mark, and U+FFFD itself', () => {
  expect(invalidUtf8At(Uint8Array.from(valid))).toBe(-1);
});

it.each([
  ['a byte that begins nothing', [0xff]],
  ['a continuation alone', [0x80]],
  ['Latin-1', [0xe9, 0x20]],
  ['an overlong form', [0xc0, 0x80]],
  ['a surrogate', [0xed, 0xa0, 0x80]],
  ['a character cut short at the end', [0xf0, 0x9f, 0x90]],
])('finds %s', (_, bytes) => {
  expect(invalidUtf8At(Uint8Array.from([...valid, ...bytes]))).toBe(valid.length);
  expect(invalidUtf8At(Uint8Array.from(bytes))).toBe(0);
});
