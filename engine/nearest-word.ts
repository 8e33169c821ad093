/** How far a word may be from the one that was meant: one letter in three, three at most. */
const [LETTERS_AN_EDIT, MAX_EDITS] = [3, 3];

/**
 * The word of `known` that a person who wrote `wanted` probably meant: the same but for case and separators, or the nearest
 * by letters added, left out, changed or swapped; null where none is near. The first of equally near ones.
 */
export function nearestWord(wanted: string, known: readonly string[]): string | null {
  const bare = letters(wanted);
  let [nearest, least]: [string | null, number] = [
    null,
    Math.min(MAX_EDITS, Math.floor(bare.length / LETTERS_AN_EDIT)) + 1,
  ];
  for (const word of known) {
    const other = letters(word);
    if (Math.abs(other.length - bare.length) >= least) continue;
    const distance = edits(bare, other);
    if (distance < least) [nearest, least] = [word, distance];
  }
  return nearest;
}

/** ". Did you mean X?", as the end of a message; nothing where no word is near. */
export function didYouMean(wanted: string, known: readonly string[]): string {
  const word = nearestWord(wanted, known);
  return word === null ? '' : `. Did you mean ${word}?`;
}

/** A word as it counts: max_steps is maxSteps. */
export function letters(word: string): string {
  // No known word is longer.
  return word
    .slice(0, 64)
    .toLowerCase()
    .replaceAll(/[-_.\s]/g, '');
}

/** Letters to add, leave out, change, or swap with the next, until `a` is `b` (optimal string alignment). */
function edits(a: string, b: string): number {
  let [twoBack, before]: number[][] = [[], Array.from({ length: b.length + 1 }, (_, j) => j)];
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const change = before[j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1);
      row[j] = Math.min(before[j] + 1, row[j - 1] + 1, change);
      const isSwap = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1];
      if (isSwap) row[j] = Math.min(row[j], twoBack[j - 2] + 1);
    }
    [twoBack, before] = [before, row];
  }
  return before[b.length];
}
