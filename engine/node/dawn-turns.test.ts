import { expect, test } from 'vitest';
import { paceDawn } from './dawn-turns.ts';

/** What Dawn sets: a function without a name that is not JavaScript. */
function like(work: () => void): () => void {
  return Object.defineProperty(work.bind(null), 'name', { value: '' });
}

/** Asks again and again for so long, as Dawn does; resolves to how often. */
function askFor(ms: number): Promise<number> {
  return new Promise((resolve) => {
    const until = performance.now() + ms;
    let asked = 0;
    const question = () => {
      asked++;
      if (performance.now() < until) setImmediate(like(question));
      else resolve(asked);
    };
    setImmediate(like(question));
  });
}

test.each([true, false])('questions are paced, and what others set is not; on a GPU: %s', async (onGpu) => {
  const begun = performance.now();
  paceDawn(onGpu);
  const asking = askFor(5);
  let turns = 0;
  let other = setImmediate(function turn() {
    turns++;
    other = setImmediate(turn);
  });
  const never = setImmediate(() => expect.unreachable('it was cleared'));
  clearImmediate(never);
  const asked = await asking;
  clearImmediate(other);
  const most = (performance.now() - begun) / 0.05 + 2;
  expect(asked).toBeGreaterThan(1);
  expect(asked).toBeLessThanOrEqual(most);
  expect(turns).toBeGreaterThan(0);
  expect(await new Promise((resolve) => setImmediate(resolve, 5))).toBe(5);
  await new Promise<void>((resolve) =>
    setImmediate((a: number, b: number) => resolve(expect([a, b]).toEqual([1, 2])), 1, 2),
  );
});
