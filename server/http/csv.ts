/**
 * One line of a CSV file (RFC 4180). Text that a spreadsheet would take for a formula gets an apostrophe in front; numbers
 * stay numbers, and so does the word -Infinity.
 */
export function csvLine(cells: readonly (string | number)[]): string {
  return `${cells.map(cell).join(',')}\r\n`;
}

function cell(value: string | number): string {
  if (typeof value === 'number' || value === '-Infinity') return String(value);
  const safe = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}
