import { randomInt } from 'node:crypto';

const LETTERS = '0123456789abcdefghijklmnopqrstuvwxyz';
let lastMs = 0;

/** What a run's id looks like; nothing else reaches a file name or a socket room. */
export const RUN_ID = /^[0-9a-z]{9}-[0-9a-z]{6}$/;

/** A new id: creation time in base 36, then chance. Ids sort by creation, also within one process's millisecond. */
export function newRunId(nowMs = Date.now()): string {
  lastMs = Math.max(nowMs, lastMs + 1);
  const chance = Array.from({ length: 6 }, () => LETTERS[randomInt(LETTERS.length)]).join('');
  return `${lastMs.toString(36).padStart(9, '0')}-${chance}`;
}
