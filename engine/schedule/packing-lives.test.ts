import { expect, test } from 'vitest';
import type { Life } from './lifetimes.ts';
import { packingLives } from './packing-lives.ts';
import type { Lane, Tensor } from './schedule.ts';

/** Pieces of a reduction, what is packed and what is received each of so many bytes; then the visit that comes next. */
function reduction(pieces: number, bytes: number) {
  const steps: { lane: Lane; visit: number }[] = [];
  const tensors: Tensor[] = [];
  const lives: Life[] = [];
  for (let piece = 0; piece < pieces; piece++)
    for (const [lane, name] of [
      ['host', 'packed'],
      ['comm', 'received'],
    ] as const) {
      const id = tensors.length;
      tensors.push({ id, name: `${name} ${piece}`, bytes, category: 'workspace', space: 'device', state: false });
      lives.push({ first: steps.length, last: steps.length });
      steps.push({ lane, visit: steps.length });
    }
  steps.push({ lane: 'compute', visit: steps.length });
  return { steps, tensors, lives };
}

/** The most that lives at once. */
function fullest(lives: readonly Life[], bytes: number, steps: number): number {
  return (
    Math.max(...Array.from({ length: steps }, (_, i) => lives.filter((l) => l.first <= i && i <= l.last).length)) *
    bytes
  );
}

test('without room to spare copies hand on one range; with it, the next three get others, and the visit if there is room', () => {
  const { steps, tensors, lives } = reduction(6, 100);
  expect(packingLives(tensors, steps, lives, null)).toEqual(lives);
  expect(packingLives(tensors, steps, lives, 0).slice(0, -1)).toEqual(lives.slice(0, -1));
  // What is kept all the time, so that 300 bytes are little beside it.
  const kept: Tensor = { id: 12, name: 'kept', bytes: 1e6, category: 'activations', space: 'device', state: false };
  const all = [...lives, { first: 0, last: steps.length - 1 }];
  const apart = packingLives([...tensors, kept], steps, all, 300).slice(0, 12);
  expect(fullest(apart, 100, steps.length)).toBe(400);
  for (const [i, { first, last }] of apart.entries())
    expect(last - first).toBeGreaterThanOrEqual(Math.min(3, steps.length - 1 - i));
  const whole = packingLives([...tensors, kept], steps, all, 10_000);
  for (const { last } of whole) expect(last).toBe(steps.length - 1);
});

test('what the compute lane touches last, what is kept and what is not on the device stay as they are', () => {
  const { steps, tensors, lives } = reduction(1, 100);
  const more = tensors.map((tensor, i) =>
    i === 0 ? { ...tensor, state: true } : { ...tensor, space: 'host' as const },
  );
  expect(packingLives(more, steps, lives, 1000)).toEqual(lives);
  const computed = steps.map((step) => ({ ...step, lane: 'compute' as const }));
  expect(packingLives(tensors, computed, lives, 1000)).toEqual(lives);
});
