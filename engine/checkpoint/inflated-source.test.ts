import { deflateRawSync } from 'node:zlib';
import { describe, expect, test } from 'vitest';
import { seededRandom } from '../ops/kernel-case.ts';
import { type ByteSource, bytesSource, PIECE_BYTES } from './byte-source.ts';
import { inflatedSource } from './inflated-source.ts';

const random = seededRandom(1);
/** Half of it noise, so that it does not shrink to nothing. */
const content = Uint8Array.from({ length: 3 * PIECE_BYTES }, () => (random() < 0.5 ? 0 : Math.floor(random() * 256)));
const packed = new Uint8Array(deflateRawSync(content, { level: 1 }));

function counting(bytes: Uint8Array): ByteSource & { readBytes: number } {
  const inner = bytesSource('record', bytes);
  const source = {
    ...inner,
    readBytes: 0,
    read(offset: number, length: number) {
      source.readBytes += length;
      return inner.read(offset, length);
    },
  };
  return source;
}

const same = (a: Uint8Array, b: Uint8Array) => expect(Buffer.compare(a, b)).toBe(0);

describe('a deflated record, unpacked as it is read', () => {
  test('forwards, backwards, over gaps and all at once', async () => {
    const source = inflatedSource(bytesSource('record', packed), content.length);
    for (const [from, to] of [
      [0, 10],
      [10, 100_000],
      [5_000_000, 5_000_007],
      [3, 70_000],
      [content.length - 5, content.length],
      [0, content.length],
    ])
      same(await source.read(from, to - from), content.subarray(from, to));
    expect((await source.read(content.length, 0)).length).toBe(0);
    await expect(source.read(content.length, 1)).rejects.toMatchObject({ code: 'bad-file' });
    same(await source.read(7, 9), content.subarray(7, 16));
  });

  test('reads that are asked for at the same time do not mix', async () => {
    const source = inflatedSource(bytesSource('record', packed), content.length);
    const places = Array.from({ length: 20 }, () => Math.floor(random() * (content.length - 1000)));
    const parts = await Promise.all(places.map((at) => source.read(at, 1000)));
    for (const [i, at] of places.entries()) same(parts[i], content.subarray(at, at + 1000));
  });

  test('the beginning does not need the rest', async () => {
    const stored = counting(packed);
    expect(packed.length).toBeGreaterThan(2 * PIECE_BYTES);
    await inflatedSource(stored, content.length).read(0, 1000);
    expect(stored.readBytes).toBeLessThan(packed.length / 4);
  });

  test('from its first byte to its last it is read once', async () => {
    const stored = counting(packed);
    const source = inflatedSource(stored, content.length);
    for (let at = 0; at < content.length; at += 1_000_000)
      await source.read(at, Math.min(1_000_000, content.length - at));
    expect(stored.readBytes).toBe(packed.length);
  });

  test('damage, too little and too much are typed errors, and the next read says so again', async () => {
    const noise = packed.slice();
    noise.fill(0xff, 1000, 2000);
    for (const [bytes, claim, words] of [
      [noise, content.length, /damaged|unpacks to/],
      [packed.subarray(0, packed.length >> 1), content.length, /unpacks to|damaged/],
      [
        packed,
        content.length + 1,
        new RegExp(`unpacks to ${content.length} bytes instead of the ${content.length + 1}`),
      ],
      [packed, content.length - 1, /more than the \d+ bytes it claims/],
    ] as const) {
      const source = inflatedSource(bytesSource('record', bytes), claim);
      for (let time = 0; time < 2; time++) await expect(source.read(0, claim)).rejects.toThrow(words);
    }
  });
});
