import { describe, expect, it, vi } from 'vitest';
import { SimulatedLink } from './simulated-link.ts';

describe('a simulated link', () => {
  it('passes bytes one after the other at its rate', async () => {
    vi.useFakeTimers();
    try {
      const link = new SimulatedLink();
      const passed: string[] = [];
      // 1 GB/s: a megabyte takes a millisecond.
      void link.pass(3e6, 1).then(() => passed.push('first'));
      void link.pass(2e6, 1).then(() => passed.push('second'));
      await vi.advanceTimersByTimeAsync(2);
      expect(passed).toEqual([]);
      await vi.advanceTimersByTimeAsync(1);
      expect(passed).toEqual(['first']);
      await vi.advanceTimersByTimeAsync(2);
      expect(passed).toEqual(['first', 'second']);
    } finally {
      vi.useRealTimers();
    }
  });
});
