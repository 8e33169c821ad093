import { StudioError } from '../errors.ts';
import { createTokenizer } from './wikitext.ts';

/** The word that stands for a line's end. */
const EOS = '<eos>';

/**
 * A prompt in the words of a corpus, as its text was tokenised; a last line that is not ended stays open, to be continued.
 * Throws StudioError `bad-data` naming the words that the corpus does not have.
 */
export function encodePrompt(text: string, words: readonly string[]): number[] {
  const ids = new Map(words.map((word, id) => [word, id]));
  const unknown = new Set<string>();
  const idOf = (word: string): number => {
    const id = ids.get(word);
    if (id === undefined) unknown.add(word);
    return id ?? 0;
  };
  const tokenizer = createTokenizer({ words, idOf });
  tokenizer.push(text);
  const tokens = [...tokenizer.finish()];
  if (unknown.size)
    throw new StudioError('bad-data', `the model knows no ${[...unknown].map((word) => `"${word}"`).join(', ')}`, {
      words: [...unknown],
    });
  return /[\r\n]$/.test(text) ? tokens : tokens.slice(0, -1);
}

/** Tokens as text: words with blanks between, lines where they end. */
export function decodeTokens(tokens: readonly number[], words: readonly string[]): string {
  return tokens
    .map((token) => words[token] ?? `<${token}>`)
    .join(' ')
    .replaceAll(new RegExp(` ?${EOS} ?`, 'g'), '\n');
}
