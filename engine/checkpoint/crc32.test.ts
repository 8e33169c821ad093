import { crc32 as platformCrc } from 'node:zlib';
import { expect, test } from 'vitest';
import { crc32 } from './crc32.ts';

/** The definition, a bit at a time. */
function slowCrc(bytes: Uint8Array): number {
  let crc = 0xffffffff;
  for (const byte of bytes) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0xedb88320 : crc >>> 1;
  }
  return ~crc >>> 0;
}

test('the check value of the standard', () => {
  expect(crc32(new TextEncoder().encode('123456789'))).toBe(0xcbf43926);
  expect(crc32(new Uint8Array(0))).toBe(0);
});

test('every length around the sixteen-byte turn equals the bitwise definition, whole or in two parts', () => {
  const bytes = Uint8Array.from({ length: 67 }, (_, i) => (i * 151 + 13) & 0xff);
  for (let length = 0; length <= bytes.length; length++) {
    const part = bytes.subarray(0, length);
    expect(crc32(part)).toBe(slowCrc(part));
    const cut = Math.floor(length / 3);
    expect(crc32(part.subarray(cut), crc32(part.subarray(0, cut)))).toBe(slowCrc(part));
  }
});

test('Node’s own, which files on disk are checked with, is the same function', () => {
  const bytes = Uint8Array.from({ length: 1000 }, (_, i) => (i * 151 + 13) & 0xff);
  expect(platformCrc(bytes, 0)).toBe(crc32(bytes));
  expect(platformCrc(bytes.subarray(7), crc32(bytes.subarray(0, 7)))).toBe(crc32(bytes));
});
