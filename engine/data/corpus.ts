/** A text as token ids: of its own words, numbered from 0 in order of first appearance, or GPT-2's. */
export interface Corpus {
  readonly kind: 'moby-dick' | 'wikitext2';
  /** The text file, as the config names it; null for the built-in text. */
  readonly path: string | null;
  readonly tokens: Int32Array;
  /** `words[id]` is the word; null where the ids are GPT-2's. */
  readonly words: readonly string[] | null;
  readonly vocabSize: number;
  /** Of the text's bytes, in hex. */
  readonly sha256: string;
}

/** What a form needs to know of a corpus. `tokens` and `samples` are counts. */
export interface CorpusInfo {
  readonly kind: Corpus['kind'];
  readonly path: string | null;
  readonly vocabSize: number;
  readonly tokens: number;
  readonly samples: number;
}

/** Samples in a text: item i needs tokens i·k … i·k + k, and as in the WikiText2 class the last block has no item. */
export function countSamples(tokens: number, blockSize: number): number {
  return Math.max(0, Math.floor(tokens / blockSize) - 1);
}

/** Describes a corpus cut into blocks of `blockSize` tokens. */
export function corpusInfo(corpus: Corpus, blockSize: number): CorpusInfo {
  const { kind, path, vocabSize, tokens } = corpus;
  return { kind, path, vocabSize, tokens: tokens.length, samples: countSamples(tokens.length, blockSize) };
}
