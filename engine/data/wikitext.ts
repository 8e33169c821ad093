import { StudioError } from '../errors.ts';
import { createTokenList, type Tokenizer } from './tokenizer.ts';

/** The word that ends every line, empty ones too. */
const EOS = '<eos>';

/** A Map holds no more keys than this in V8. */
const MAX_WORDS = 2 ** 24;

const LINE_FEED = 0x0a;
const CARRIAGE_RETURN = 0x0d;

/** Words numbered from 0 by first appearance. */
export interface Vocabulary {
  readonly words: readonly string[];
  /** The word's id, a new one if the word is new. Throws `too-large` above 2^24 words. */
  idOf(word: string): number;
}

export function createVocabulary(): Vocabulary {
  const ids = new Map<string, number>();
  const words: string[] = [];
  return {
    words,
    idOf(word) {
      let id = ids.get(word);
      if (id === undefined) {
        id = words.length;
        if (id === MAX_WORDS) throw new StudioError('too-large', `The text has more than ${MAX_WORDS} distinct words.`);
        ids.set(word, id);
        words.push(word);
      }
      return id;
    },
  };
}

/**
 * Tokenises as Lightning's WikiText2 class does (`for line in file: line.split() + ["<eos>"]`, file in text mode).
 * Lines end at \n, \r\n or \r only (Python's universal newlines), words at Python's whitespace. Throws `too-large` above
 * 2^28 tokens or 2^24 distinct words.
 */
export function createTokenizer(vocabulary: Vocabulary): Tokenizer {
  const tokens = createTokenList();
  let word = ''; // begun in an earlier part
  let lineOpen = false; // something stands after the last line end
  let afterReturn = false;

  const emit = (text: string) => tokens.add(vocabulary.idOf(text));

  return {
    push(part) {
      let from = 0;
      for (let at = 0; at < part.length; at++) {
        const code = part.charCodeAt(at);
        if (!isPythonSpace(code)) {
          lineOpen = true;
          afterReturn = false;
          continue;
        }
        if (at > from || word !== '') {
          emit(word + part.slice(from, at));
          word = '';
        }
        from = at + 1;
        const secondHalf = code === LINE_FEED && afterReturn;
        if (!secondHalf) {
          lineOpen = code !== LINE_FEED && code !== CARRIAGE_RETURN;
          if (!lineOpen) emit(EOS);
        }
        afterReturn = code === CARRIAGE_RETURN;
      }
      word += part.slice(from);
    },
    finish() {
      if (word !== '') emit(word);
      if (lineOpen) emit(EOS);
      word = '';
      lineOpen = false;
      return tokens.ids();
    },
  };
}

/** The ids of a text held whole; see `createTokenizer`. */
export function tokenizeLines(text: string, vocabulary: Vocabulary): Int32Array {
  const tokenizer = createTokenizer(vocabulary);
  tokenizer.push(text);
  return tokenizer.finish();
}

/** Python's `str.isspace` for one UTF-16 unit. JavaScript's \s lacks U+001C to 1F and 85, and has U+FEFF. */
function isPythonSpace(code: number): boolean {
  if (code <= 0x20) return code === 0x20 || (code >= 0x09 && code <= 0x0d) || code >= 0x1c;
  if (code < 0x1680) return code === 0x85 || code === 0xa0;
  return (
    (code >= 0x2000 && code <= 0x200a) ||
    code === 0x1680 ||
    code === 0x2028 ||
    code === 0x2029 ||
    code === 0x202f ||
    code === 0x205f ||
    code === 0x3000
  );
}
