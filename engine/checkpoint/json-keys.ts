const QUOTE = 0x22;
const BACKSLASH = 0x5c;

/**
 * The first key that an object in a JSON text has twice, or undefined. JSON.parse keeps the last one silently. The text
 * need not be valid: whatever else is wrong with it is JSON.parse's to say.
 */
export function duplicateJsonKey(text: string): string | undefined {
  /** The keys of each open object; null for an open array. */
  const open: (Set<string> | null)[] = [];
  let keyExpected = false;
  for (let at = 0; at < text.length; at++) {
    const character = text[at];
    if (character === '"') {
      const end = stringEnd(text, at);
      if (keyExpected) {
        const key = unquote(text.slice(at, end));
        if (open.at(-1)!.has(key)) return key;
        open.at(-1)!.add(key);
      }
      keyExpected = false;
      at = end - 1;
    } else if (character === '{') {
      open.push(new Set());
      keyExpected = true;
    } else if (character === '[') {
      open.push(null);
      keyExpected = false;
    } else if (character === '}' || character === ']') {
      open.pop();
      keyExpected = false;
    } else if (character === ',') keyExpected = open.at(-1) instanceof Set;
  }
  return undefined;
}

/** Where the string that begins at `start` ends, its closing quote included. */
function stringEnd(text: string, start: number): number {
  for (let at = start + 1; at < text.length; at++) {
    const code = text.charCodeAt(at);
    if (code === QUOTE) return at + 1;
    if (code === BACKSLASH) at++;
  }
  return text.length;
}

function unquote(literal: string): string {
  try {
    return JSON.parse(literal) as string;
  } catch {
    return literal; // Not valid JSON, which the caller finds out when it parses the whole.
  }
}
