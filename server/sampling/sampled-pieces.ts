import type { Sampling } from '../../engine/node/sample-checkpoint.ts';

/** What a sampling adds: the prompt first, without a token; then what each token adds; last, what was held back. */
export interface SampledPiece {
  readonly token: number | null;
  /** The words, or ids where nobody knows the words. */
  readonly text: string;
}

/**
 * A sampling as text, piece by piece as it is drawn. A character whose bytes are not all drawn yet (U+FFFD at the end)
 * waits for them.
 */
export async function* sampledPieces({ prompt, tokens, text }: Sampling): AsyncGenerator<SampledPiece, void, void> {
  const all = [...prompt];
  let written = '';
  const added = (isLast: boolean): string => {
    const known = text(all) ?? all.join(' ');
    const now = isLast ? known : known.replace(/\ufffd+$/, '');
    const piece = now.slice(written.length);
    written = now;
    return piece;
  };
  yield { token: null, text: added(false) };
  for await (const token of tokens) {
    all.push(token);
    yield { token, text: added(false) };
  }
  yield { token: null, text: added(true) };
}
