import { StudioError } from '../errors.ts';

/** The buffer of ids doubles up to this: 1 GiB. */
const MAX_TOKENS = 2 ** 28;

/** Takes a text in parts. */
export interface Tokenizer {
  /** The next part of the text; parts may be cut anywhere, within a word or between \r and \n. */
  push(part: string): void;
  /** Ends the text, and its last line or word. Returns the ids of the whole text. */
  finish(): Int32Array<ArrayBuffer>;
}

/** The ids of a text while they are found. */
export interface TokenList {
  /** Throws `too-large` above 2^28 tokens. */
  add(id: number): void;
  /** A copy of the ids so far. */
  ids(): Int32Array<ArrayBuffer>;
}

export function createTokenList(): TokenList {
  let ids = new Int32Array(1024);
  let count = 0;
  return {
    add(id) {
      if (count === ids.length) {
        if (count === MAX_TOKENS) throw new StudioError('too-large', `The text has more than ${MAX_TOKENS} tokens.`);
        const larger = new Int32Array(2 * count);
        larger.set(ids);
        ids = larger;
      }
      ids[count++] = id;
    },
    ids: () => ids.slice(0, count),
  };
}
