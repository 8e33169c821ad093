import { fromWire, type WireNumber } from '../../engine/trainer/events.ts';

/** How numbers look in the studio. One locale for everyone, so that a server-drawn page and a browser agree. */
const LOCALE = 'en-US';
const integer = new Intl.NumberFormat(LOCALE, { maximumFractionDigits: 0 });
const BINARY_UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'] as const;

/** What stands where there is no number yet. */
export const NONE = '–';

/** Three significant digits or all the whole ones: 9.21, 12.3, 123, 1,234. */
function significant(value: number): string {
  const size = Math.abs(value);
  const digits = size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2;
  return new Intl.NumberFormat(LOCALE, { minimumFractionDigits: digits, maximumFractionDigits: digits }).format(value);
}

/** Bytes in binary units: 512 B, 9.21 MiB. */
export function formatBytes(bytes: number | null | undefined): string {
  if (bytes === null || bytes === undefined) return NONE;
  let value = bytes;
  let unit = 0;
  while (Math.abs(value) >= 999.5 && unit < BINARY_UNITS.length - 1) {
    value /= 1024;
    unit++;
  }
  return `${unit === 0 ? integer.format(value) : significant(value)} ${BINARY_UNITS[unit]}`;
}

/** Bytes to the last one, with separators: 9,657,344 B. */
export function formatExactBytes(bytes: number): string {
  return `${integer.format(bytes)} B`;
}

/** Milliseconds as ms below a second, then s. */
export function formatMs(ms: number | null | undefined): string {
  if (ms === null || ms === undefined) return NONE;
  return ms < 999.5 ? `${significant(ms)} ms` : `${significant(ms / 1000)} s`;
}

/** From the least to the most, in one unit: 1.66–2.20 s. */
export function formatMsRange(minMs: number, maxMs: number): string {
  const [least, most] = [formatMs(minMs), formatMs(maxMs)];
  const unit = (text: string) => text.slice(text.indexOf(' '));
  return unit(least) === unit(most) ? `${least.replace(unit(least), '')}–${most}` : `${least} – ${most}`;
}

/** A loss or a norm: four decimals; numbers that are not finite as words. */
export function formatLoss(value: WireNumber | null | undefined): string {
  if (value === null || value === undefined) return NONE;
  const number = fromWire(value);
  if (!Number.isFinite(number)) return String(number);
  const size = Math.abs(number);
  return size !== 0 && (size < 0.001 || size >= 1e6) ? number.toExponential(3) : number.toFixed(4);
}

/** A whole number with separators. */
export function formatCount(count: number | null | undefined): string {
  return count === null || count === undefined ? NONE : integer.format(count);
}

/** A large count in short: 1.01 B, 13.6 M, 97. */
export function formatShortCount(count: number): string {
  for (const [size, unit] of [
    [1e9, 'B'],
    [1e6, 'M'],
    [1e3, 'K'],
  ] as const) {
    if (count >= size) return `${significant(count / size)} ${unit}`;
  }
  return integer.format(count);
}

/** A span for people: 40 s, 3 min 20 s, 2 h 5 min. */
export function formatDuration(ms: number): string {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return seconds % 60 ? `${minutes} min ${seconds % 60} s` : `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  return `${Math.round(hours / 24)} days`;
}

/** How long ago an ISO 8601 time was: just now, 5 min ago, 3 days ago. */
export function formatAgo(iso: string, nowMs: number): string {
  const ms = nowMs - Date.parse(iso);
  if (ms < 45_000) return 'just now';
  const minutes = Math.round(ms / 60_000);
  if (minutes < 60) return `${minutes} min ago`;
  const hours = Math.round(minutes / 60);
  if (hours < 24) return `${hours} h ago`;
  const days = Math.round(hours / 24);
  return days === 1 ? 'yesterday' : `${days} days ago`;
}

/** An ISO 8601 time in the viewer's zone, which it names. */
export function formatTime(iso: string): string {
  return new Intl.DateTimeFormat(LOCALE, {
    dateStyle: 'medium',
    timeStyle: 'long',
  }).format(new Date(iso));
}

/** How many times as long something took as was predicted, and which way: 20× longer, 1.3× shorter, as predicted. */
export function formatAgainst(measured: number, predicted: number): string {
  const ratio = measured / predicted;
  if (ratio > 0.95 && ratio < 1.05) return 'as predicted';
  const times = ratio >= 1 ? ratio : 1 / ratio;
  return `${times < 9.95 ? times.toFixed(1) : integer.format(times)}× ${ratio >= 1 ? 'longer' : 'shorter'}`;
}

/** A ratio to the first: 1.00×, 0.43×. */
export function formatRatio(value: number | null, first: number | null): string {
  return value === null || first === null || first === 0 ? NONE : `${(value / first).toFixed(2)}×`;
}

/** Milliseconds that the steps still to come take at the pace so far; null while nothing can be said. */
export function timeLeftMs(stepsDone: number, steps: number, iterationMs: number | null): number | null {
  return iterationMs === null || stepsDone < 2 || stepsDone >= steps ? null : (steps - stepsDone) * iterationMs;
}
