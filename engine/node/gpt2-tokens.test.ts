import fc from 'fast-check';
import { decode as decodeByPackage, encode as encodeByPackage } from 'gpt-tokenizer/encoding/r50k_base';
import { describe, expect, it } from 'vitest';
import { GPT2_VOCAB_SIZE } from '../config.ts';
import { gpt2Tokens } from './gpt2-tokens.ts';

const { encode, decode, tokenizer, vocabSize } = await gpt2Tokens();

/** Words, endings, digits, signs, blanks of many kinds, and what is longer than one UTF-16 unit, in any order. */
const unit = fc.constantFrom(
  ...["'", "'s", "'re", "'ll", 'r', 'e', 's', 'l', 'whale', ' Ishmael', 'A', '7', '2026', '.', ',', '--', '"', '|'],
  ...[
    ' ',
    '  ',
    '\n',
    '\r\n',
    '\t',
    '\u00a0',
    '\u2028',
    '\u3000',
    'é',
    'ß',
    '鯨',
    '白',
    '🐋',
    '👩‍🚀',
    '\u0301',
    '٣',
    '\0',
  ],
);
const text = fc.string({ unit, maxLength: 40 });

describe("GPT-2's tokens", () => {
  it.each<[string, number[]]>([
    ['Call me Ishmael.', [14134, 502, 1148, 21720, 417, 13]],
    ['Hello world', [15496, 995]],
    ['\n\n', [628]],
    ['<|endoftext|>', [27, 91, 437, 1659, 5239, 91, 29]],
  ])('of %j are known', (text, ids) => {
    expect(encode(text)).toEqual(ids);
    expect(decode(ids)).toBe(text);
  });

  it('are 50,257, the last of which stands in no text', () => {
    expect(vocabSize).toBe(50_257);
    expect(GPT2_VOCAB_SIZE).toBe(vocabSize);
    expect(decode([50_256])).toBe('<|endoftext|>');
  });

  it('are those of gpt-tokenizer, which merges by itself', () => {
    fc.assert(
      fc.property(text, (text) => {
        const ids = encode(text);
        expect(ids).toEqual(encodeByPackage(text, { disallowedSpecial: new Set() }));
        expect(decodeByPackage(ids)).toBe(text);
      }),
      { numRuns: 300 },
    );
  });

  it('come back as the text', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary' }), (text) => {
        expect(decode(encode(text))).toBe(text);
      }),
    );
  });

  it('are the same wherever the text is cut', () => {
    fc.assert(
      fc.property(text, fc.array(fc.nat(4), { minLength: 1, maxLength: 8 }), (text, lengths) => {
        const cut = tokenizer();
        for (let at = 0, i = 0; at < text.length; i++) {
          const length = lengths[i % lengths.length] + 1;
          cut.push(text.slice(at, at + length));
          at += length;
        }
        expect([...cut.finish()]).toEqual(encode(text));
      }),
      { numRuns: 500 },
    );
  });
});
