/**
 * One CSV cell (RFC 4180). A cell that a spreadsheet would run as a formula gets an apostrophe before it; plain numbers,
 * negative ones too, stay numbers.
 */
function csvCell(value: string | number | null): string {
  if (value === null) return '';
  const text = String(value);
  if (typeof value === 'number') return text;
  const safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** Rows as CSV text, lines ended by CRLF. Numbers that are not finite come out as NaN, Infinity and -Infinity. */
export function toCsv(rows: readonly (readonly (string | number | null)[])[]): string {
  return rows.map((row) => `${row.map(csvCell).join(',')}\r\n`).join('');
}
