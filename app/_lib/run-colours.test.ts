import { describe, expect, it } from 'vitest';
import { assignSlots, RUN_COLOURS } from './run-colours.ts';

describe('colours of runs', () => {
  it('never changes one that was given, and repeats only when all are used', () => {
    const slots = new Map<string, number>();
    const ids = Array.from({ length: RUN_COLOURS + 1 }, (_, i) => `run-${i}`);
    expect(assignSlots(slots, ids)).toBe(true);
    expect(new Set(ids.slice(0, RUN_COLOURS).map((id) => slots.get(id))).size).toBe(RUN_COLOURS);
    expect(slots.get(ids[RUN_COLOURS])).toBe(0);
    const before = new Map(slots);
    expect(assignSlots(slots, [...ids].reverse())).toBe(false);
    expect(slots).toEqual(before);
  });

  it('forgets the oldest of very many', () => {
    const slots = new Map<string, number>();
    assignSlots(
      slots,
      Array.from({ length: 600 }, (_, i) => `run-${i}`),
    );
    expect(slots.size).toBe(500);
    expect(slots.has('run-0')).toBe(false);
    expect(slots.has('run-599')).toBe(true);
  });
});
