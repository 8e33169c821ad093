/** A number with what it counts: 1 rank, 2 ranks. */
export function counted(count: number, word: string): string {
  return `${count} ${word}${count === 1 ? '' : 's'}`;
}
