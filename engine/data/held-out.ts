import type { Corpus } from './corpus.ts';

/**
 * Cuts the last `fraction` of a text's tokens off for validation. Both parts keep the words and the digest of the whole;
 * no token is in both.
 */
export function holdOut(corpus: Corpus, fraction: number): { training: Corpus; validation: Corpus } {
  const cut = corpus.tokens.length - Math.floor(corpus.tokens.length * fraction);
  return {
    training: { ...corpus, tokens: corpus.tokens.subarray(0, cut) },
    validation: { ...corpus, tokens: corpus.tokens.subarray(cut) },
  };
}
