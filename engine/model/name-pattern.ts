/** Whether a state_dict name fits a pattern: the whole name, where `*` stands for any run of characters. */
export function matchesPattern(pattern: string, name: string): boolean {
  const parts = pattern.split('*');
  if (parts.length === 1) return pattern === name;
  const first = parts[0];
  const last = parts[parts.length - 1];
  if (!name.startsWith(first) || !name.endsWith(last) || name.length < first.length + last.length) return false;
  let at = first.length;
  const end = name.length - last.length;
  for (const part of parts.slice(1, -1)) {
    const found = name.indexOf(part, at);
    if (found < 0 || found + part.length > end) return false;
    at = found + part.length;
  }
  return true;
}

/** The names that some pattern fits, and the patterns that fit none. */
export function matchNames(
  patterns: readonly string[],
  names: readonly string[],
): { matched: Set<string>; unmatched: string[] } {
  const matched = new Set(names.filter((name) => patterns.some((pattern) => matchesPattern(pattern, name))));
  const unmatched = patterns.filter((pattern) => !names.some((name) => matchesPattern(pattern, name)));
  return { matched, unmatched };
}
