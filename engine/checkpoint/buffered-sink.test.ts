import { expect, test } from 'vitest';
import { bufferedSink } from './buffered-sink.ts';
import { memorySink } from './fixtures/memory-sink.ts';

test('the same bytes in the same order, in fewer calls', async () => {
  const inner = memorySink();
  let calls = 0;
  const sink = bufferedSink({
    write: (chunk) => {
      calls++;
      return inner.write(chunk);
    },
  });
  const sizes = [1, 0, 500_000, 600_000, 3, 2_000_000, 7, 524_288, 524_289];
  for (const [i, size] of sizes.entries()) await sink.write(new Uint8Array(size).fill(i + 1));
  for (let i = 0; i < 1000; i++) await sink.write(Uint8Array.of(99));
  await sink.flush();
  await sink.flush();
  const expected = Buffer.concat([...sizes.map((size, i) => Buffer.alloc(size, i + 1)), Buffer.alloc(1000, 99)]);
  expect(Buffer.compare(inner.bytes(), expected)).toBe(0);
  expect(calls).toBeLessThan(9);
});

test('an error of the disk comes out', async () => {
  const sink = bufferedSink({ write: () => Promise.reject(new Error('full')) });
  await sink.write(Uint8Array.of(1));
  await expect(sink.flush()).rejects.toThrow('full');
});
