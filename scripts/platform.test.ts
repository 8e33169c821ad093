import { expect, test } from 'vitest';
import { missingFrom, thisMachine } from './platform.mjs';

const good = { platform: 'linux', arch: 'x64', nodeVersion: '20.19.0', glibcVersion: '2.34' };

test.each([
  [{}, null],
  [{ nodeVersion: '24.1.0', glibcVersion: '3.0' }, null],
  [{ nodeVersion: '20.9.0' }, 'Shard Studio needs Node.js 20.19 or newer (this is 20.9.0).'],
  [{ glibcVersion: '2.31' }, 'Shard Studio needs glibc 2.34 or newer (this is 2.31).'],
  [{ glibcVersion: undefined }, 'Shard Studio needs glibc 2.34 or newer (this Linux has another C library).'],
  [{ arch: 'arm64' }, 'Shard Studio needs Linux on x64 (this is linux on arm64).'],
  [
    { platform: 'darwin', nodeVersion: '18.20.4', glibcVersion: undefined },
    'Shard Studio needs Linux on x64 (this is darwin on x64) and Node.js 20.19 or newer (this is 18.20.4).',
  ],
])('%j', (change, line) => {
  expect(missingFrom({ ...good, ...change })).toBe(line);
});

test('this machine is described', () => {
  expect(thisMachine()).toMatchObject({ platform: process.platform, glibcVersion: expect.stringMatching(/^\d+\.\d+/) });
});
