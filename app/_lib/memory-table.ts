/** memorySummary()'s table as data: for a screen that is narrower than its lines. */

export interface MemoryTableSection {
  /** Lines of one cell, or of two: "GPU OOMs: 0", "By category, on …". */
  readonly titles: readonly string[];
  /** Heads of the number columns. */
  readonly heads: readonly string[];
  readonly rows: readonly { readonly name: string; readonly isPart: boolean; readonly values: readonly string[] }[];
}

/** The sections of a table in torch.cuda.memory_summary's form; what is no line of it is left out. */
export function parseMemoryTable(text: string): MemoryTableSection[] {
  const sections: { titles: string[]; heads: string[]; rows: MemoryTableSection['rows'][number][] }[] = [];
  for (const line of text.split('\n')) {
    if (!/^\|.*\|$/.test(line) || /^\|[-=]+\|$/.test(line)) continue;
    const cells = line.slice(1, -1).split('|');
    const words = cells.map((cell) => cell.trim().replace(/\s+/g, ' '));
    const section = sections.at(-1);
    if (cells.length < 5) {
      if (!section || section.heads.length) sections.push({ titles: words, heads: [], rows: [] });
      else section.titles.push(...words);
    } else if (section && !section.heads.length) section.heads.push(...words.slice(1));
    else section?.rows.push({ name: words[0], isPart: /^\s{4,}/.test(cells[0]), values: words.slice(1) });
  }
  return sections;
}
