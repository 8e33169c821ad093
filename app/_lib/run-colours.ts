'use client';

import { useSyncExternalStore } from 'react';

/**
 * A run keeps its colour in every view and after a reload: the first time this browser meets a run it gives it the slot
 * that fewest known runs have, and remembers it.
 */
export const RUN_COLOURS = 8;
const STORAGE_KEY = 'shard-studio.run-colours';
const MAX_REMEMBERED = 500;

/** Gives each id without a slot the least used one; the newest ids are kept when there are too many. Changes `slots`. */
export function assignSlots(slots: Map<string, number>, ids: readonly string[]): boolean {
  let changed = false;
  for (const id of ids) {
    if (slots.has(id)) continue;
    const uses = new Array<number>(RUN_COLOURS).fill(0);
    for (const slot of slots.values()) uses[slot]++;
    slots.set(id, uses.indexOf(Math.min(...uses)));
    changed = true;
  }
  for (const id of slots.keys()) {
    if (slots.size <= MAX_REMEMBERED) break;
    slots.delete(id);
  }
  return changed;
}

let slots: Map<string, number> | null = null;

function load(): Map<string, number> {
  if (slots) return slots;
  slots = new Map();
  try {
    const stored: unknown = JSON.parse(localStorage.getItem(STORAGE_KEY) ?? '[]');
    if (Array.isArray(stored))
      for (const [id, slot] of stored)
        if (typeof id === 'string' && slot in [...Array(RUN_COLOURS)]) slots.set(id, slot);
  } catch {
    // Storage is off or holds something else: colours then last as long as the page.
  }
  return slots;
}

function save(): void {
  try {
    localStorage.setItem(STORAGE_KEY, JSON.stringify([...load()]));
  } catch {
    // As above.
  }
}

const never = () => () => {};

/** The CSS colour of each run, by id; the neutral one while a page is drawn on the server. */
export function useRunColours(ids: readonly string[]): (id: string) => string {
  const inBrowser = useSyncExternalStore(
    never,
    () => true,
    () => false,
  );
  if (!inBrowser) return () => 'var(--faint)';
  const known = load();
  if (assignSlots(known, ids)) save();
  return (id) => `var(--run-${(known.get(id) ?? 0) + 1})`;
}
