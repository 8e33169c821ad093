import { expect, it } from 'vitest';
import { decodeTokens, encodePrompt } from './prompt.ts';

const words = ['Call', 'me', 'Ishmael.', '<eos>'];

it('takes words as the corpus does, and leaves the last line open', () => {
  expect(encodePrompt('Call  me', words)).toEqual([0, 1]);
  expect(encodePrompt('Call me\nIshmael. ', words)).toEqual([0, 1, 3, 2]);
  expect(encodePrompt('Call me\r\n', words)).toEqual([0, 1, 3]);
});

it('names the words that it does not know, each once', () => {
  expect(() => encodePrompt('Call him him Ahab', words)).toThrow('the model knows no "him", "Ahab"');
});

it('writes lines where they end', () => {
  expect(decodeTokens([0, 1, 2, 3, 3, 0, 9], words)).toBe('Call me Ishmael.\n\nCall <9>');
});

it('of an empty text is nothing', () => {
  expect(encodePrompt('', words)).toEqual([]);
  expect(encodePrompt('  ', words)).toEqual([]);
});
