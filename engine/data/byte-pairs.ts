import { StudioError } from '../errors.ts';
import { createTokenList, type Tokenizer } from './tokenizer.ts';

/** Tokens of byte-pair encoding, by id: the rank of a token's merge is its id, and lower ranks merge first. */
export interface BytePairs {
  readonly vocabSize: number;
  /** A text in parts: the ids are those of the whole text, wherever it is cut. */
  tokenizer(): Tokenizer;
  /** The ids of a text. Throws `too-large` as `tokenizer` does. */
  encode(text: string): number[];
  /** Tokens as text. Bytes that are not UTF-8 become U+FFFD, an id without a token `<id>`. */
  decode(tokens: readonly number[]): string;
}

/**
 * What is merged by itself, as GPT-2 cuts a text: an English ending, letters, digits, other signs (each with the blank
 * before it), white space. \s is spelt out: JavaScript's has U+FEFF and lacks U+0085.
 */
const PIECES =
  /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;

/** Merging takes half a second for so many letters without a blank, and nothing else goes on meanwhile. */
const MAX_PIECE_CHARACTERS = 2 ** 18;

/** Texts repeat their words: pieces up to this length are remembered, so many at a time. */
const MAX_KEPT_CHARACTERS = 64;
const MAX_KEPT_PIECES = 2 ** 16;

/** The token that ends a document. It stands in no text: one that spells it is taken letter by letter. */
const END_OF_TEXT = '<|endoftext|>';

/**
 * GPT-2's encoding over a table of tokens (id → its text, or its bytes where these are no text of their own); the id
 * after the last is the end-of-text token, which is decoded and never encoded. The table has every single byte.
 *
 * Its tokenizers throw `too-large` above 2^18 characters of one sort (letters, digits, signs or blanks) in a row, and
 * above 2^28 tokens.
 */
export function createBytePairs(table: readonly (string | readonly number[])[]): BytePairs {
  const utf8 = new TextEncoder();
  // A key is a token's bytes as characters below 256.
  const keys = table.map((token) => keyOf(typeof token === 'string' ? utf8.encode(token) : token));
  const ids = new Map(keys.map((key, id) => [key, id]));
  const endOfText = table.length;
  const kept = new Map<string, readonly number[]>();

  const encodePiece = (piece: string): readonly number[] => {
    const known = kept.get(piece);
    if (known !== undefined) return known;
    if (piece.length > MAX_PIECE_CHARACTERS)
      throw new StudioError(
        'too-large',
        `The text has ${piece.length} characters in a row without a blank, from "${piece.slice(0, 20)}": at most ` +
          `${MAX_PIECE_CHARACTERS} can be cut into GPT-2's tokens. Use data.tokenizer word, or break its lines.`,
      );
    const key = keyOf(utf8.encode(piece));
    const whole = ids.get(key);
    const tokens = whole === undefined ? mergePairs(key, ids) : [whole];
    if (piece.length <= MAX_KEPT_CHARACTERS) {
      if (kept.size === MAX_KEPT_PIECES) kept.clear();
      kept.set(piece, tokens);
    }
    return tokens;
  };

  const tokenizer = (): Tokenizer => {
    const tokens = createTokenList();
    let open = ''; // from the first piece that what follows may still change
    const take = (text: string, isWhole: boolean) => {
      let from = 0;
      for (const { 0: piece, index } of text.matchAll(PIECES)) {
        // A piece stands once the character after it is there: two units, which also decide whether ' begins an ending.
        if (!isWhole && index + piece.length + 2 > text.length && piece.length <= MAX_PIECE_CHARACTERS) break;
        for (const id of encodePiece(piece)) tokens.add(id);
        from = index + piece.length;
      }
      open = text.slice(from);
    };
    return {
      push: (part) => take(open + part, false),
      finish() {
        take(open, true);
        return tokens.ids();
      },
    };
  };

  return {
    vocabSize: table.length + 1,
    tokenizer,
    encode(text) {
      const whole = tokenizer();
      whole.push(text);
      return [...whole.finish()];
    },
    decode(tokens) {
      let text = '';
      let bytes: number[] = [];
      const flush = () => {
        text += new TextDecoder('utf-8', { ignoreBOM: true }).decode(Uint8Array.from(bytes));
        bytes = [];
      };
      for (const id of tokens) {
        const key = keys[id];
        if (key === undefined) {
          flush();
          text += id === endOfText ? END_OF_TEXT : `<${id}>`;
        } else for (let i = 0; i < key.length; i++) bytes.push(key.charCodeAt(i));
      }
      flush();
      return text;
    },
  };
}

function keyOf(bytes: ArrayLike<number>): string {
  let key = '';
  for (let i = 0; i < bytes.length; i++) key += String.fromCharCode(bytes[i]);
  return key;
}

/**
 * Merges neighbours, always the pair whose joint token has the lowest id, the leftmost of equals, until no pair is a
 * token. A heap of candidates over a linked list: n log n, where a scan for each merge would be quadratic.
 */
function mergePairs(key: string, ids: ReadonlyMap<string, number>): number[] {
  const length = key.length;
  // A part begins at i and ends before end[i], 0 where it was merged away; before[i] is where the part before it begins.
  const end = Int32Array.from({ length }, (_, i) => i + 1);
  const before = Int32Array.from({ length }, (_, i) => i - 1);
  const heap = createHeap();
  const endOfPair = (at: number): number => (end[at] < length ? end[end[at]] : 0);
  const offer = (at: number) => {
    const to = endOfPair(at);
    const id = to === 0 ? undefined : ids.get(key.slice(at, to));
    // Exact in a double: ids are below 2^16, places below 2^20.
    if (id !== undefined) heap.push(id * 2 ** 20 + at);
  };
  for (let at = 0; at < length; at++) offer(at);
  for (let best = heap.pop(); best !== undefined; best = heap.pop()) {
    const at = best % 2 ** 20;
    const id = Math.floor(best / 2 ** 20);
    // An offer may be stale: a part of its pair was merged with another meanwhile.
    if (end[at] === 0 || endOfPair(at) === 0 || ids.get(key.slice(at, endOfPair(at))) !== id) continue;
    const right = end[at];
    end[at] = end[right];
    end[right] = 0;
    if (end[at] < length) before[end[at]] = at;
    offer(at);
    if (before[at] >= 0) offer(before[at]);
  }
  const tokens: number[] = [];
  for (let at = 0; at < length; at = end[at]) tokens.push(ids.get(key.slice(at, end[at]))!);
  return tokens;
}

/** Numbers, the smallest first. */
function createHeap(): { push(value: number): void; pop(): number | undefined } {
  const values: number[] = [];
  return {
    push(value) {
      let at = values.length;
      values.push(value);
      while (at > 0) {
        const parent = (at - 1) >> 1;
        if (values[parent] <= value) break;
        values[at] = values[parent];
        at = parent;
      }
      values[at] = value;
    },
    pop() {
      const smallest = values[0];
      const last = values.pop();
      if (last === undefined || values.length === 0) return smallest;
      let at = 0;
      for (;;) {
        let child = 2 * at + 1;
        if (child >= values.length) break;
        if (child + 1 < values.length && values[child + 1] < values[child]) child++;
        if (values[child] >= last) break;
        values[at] = values[child];
        at = child;
      }
      values[at] = last;
      return smallest;
    },
  };
}
