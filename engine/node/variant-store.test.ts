import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { readVariants, writeVariants } from './variant-store.ts';

const adapter = { id: 'pci/0000:01:00.0', name: 'a GPU', driver: '1.2' };
const chosen = { 'floats nt few rows, wide, short': 'spread-36x32k16' };
let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'variants-'));
});
afterAll(() => rmSync(folder, { recursive: true }));

test('what was chosen for an adapter is found again, and nothing for another or with another driver', () => {
  writeVariants(folder, adapter, chosen);
  expect(readVariants(folder, adapter)).toEqual(chosen);
  for (const other of [{ id: 'another' }, { name: 'another' }, { driver: '1.3' }])
    expect(readVariants(folder, { ...adapter, ...other })).toEqual({});
});

test('a file that cannot be read is as none', () => {
  mkdirSync(join(folder, 'adapters'), { recursive: true });
  for (const name of readdirSync(join(folder, 'adapters')))
    writeFileSync(join(folder, 'adapters', name), '{ "variants"');
  expect(readVariants(folder, adapter)).toEqual({});
});
