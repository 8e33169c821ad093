import { afterEach, describe, expect, test } from 'vitest';
import { randomChoice } from '../schedule/fixtures/interleaving.ts';
import { CopyThreads } from './copy-threads.ts';

const made: CopyThreads[] = [];
function copyThreads(threads: number, program?: string): CopyThreads {
  const all = new CopyThreads(threads, program === undefined ? undefined : new URL(`data:text/javascript,${program}`));
  made.push(all);
  return all;
}
afterEach(async () => {
  for (const threads of made.splice(0)) await threads.close();
});

describe.each([1, 3])('%i thread(s)', (count) => {
  test('more copies than the ring has slots, of all lengths, some in many chunks: each arrives whole, nothing beside it is touched', async () => {
    const threads = copyThreads(count);
    const choose = randomChoice(7);
    for (let round = 0; round < 6; round++) {
      const copies = Array.from({ length: 150 }, () => {
        const bytes = 1 + choose(choose(8, []) === 0 ? 3 * 2 ** 20 : 5000, []);
        const source = new Uint8Array(bytes).fill(1 + choose(255, []));
        const target = new Uint8Array(bytes + 2);
        return { source, target, done: threads.copy(target.subarray(1, bytes + 1), source) };
      });
      for (const { source, target, done } of copies) {
        await done;
        expect([target[0], target[target.length - 1]]).toEqual([0, 0]);
        expect(Buffer.compare(target.subarray(1, -1), source)).toBe(0);
      }
    }
  });
});

test('a thread that dies ends the copies under way and those to come with what it died of', async () => {
  const threads = copyThreads(2, "throw new Error('no memory for it')");
  const [target, source] = [new Uint8Array(5), new Uint8Array(5)];
  const ended = { code: 'internal', message: expect.stringContaining('no memory for it') };
  await expect(threads.copy(target, source)).rejects.toMatchObject(ended);
  await expect(threads.copy(target, source)).rejects.toMatchObject(ended);
});

test('when one thread dies, no other copies any more by the time the copies are rejected', async () => {
  // Each adds to what it finds in the ring's last word until it is ended; the first to come dies of it.
  const threads = copyThreads(
    2,
    `import { workerData } from 'node:worker_threads';
     const words = new Int32Array(workerData.state);
     if (Atomics.add(words, words.length - 1, 1) === 1) throw new Error('the second');
     for (;;) Atomics.add(words, words.length - 2, 1);`,
  );
  await expect(threads.copy(new Uint8Array(5), new Uint8Array(5))).rejects.toMatchObject({ code: 'internal' });
  const words = new Int32Array((threads as unknown as { state: SharedArrayBuffer }).state);
  const counted = Atomics.load(words, words.length - 2);
  expect(counted).toBeGreaterThan(0);
  await new Promise((resolve) => setTimeout(resolve, 20));
  expect(Atomics.load(words, words.length - 2)).toBe(counted);
});

test('closed, it refuses', async () => {
  const threads = copyThreads(1);
  await threads.copy(new Uint8Array(5), new Uint8Array(5));
  await threads.close();
  await expect(threads.copy(new Uint8Array(5), new Uint8Array(5))).rejects.toMatchObject({ code: 'internal' });
});
