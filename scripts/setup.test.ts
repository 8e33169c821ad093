import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { isInstalled } from './setup.mjs';

const folder = mkdtempSync(path.join(tmpdir(), 'shard-studio-setup-'));
afterEach(() => rmSync(folder, { recursive: true, force: true }));

const one = { version: '1.0.0', integrity: 'sha512-one' };
const two = { version: '2.0.0', integrity: 'sha512-two' };

test.each([
  ['the same packages', { 'node_modules/one': one, 'node_modules/two': two }, true],
  ['no packages at all', null, false],
  ['one is missing', { 'node_modules/one': one }, false],
  ['another version', { 'node_modules/one': one, 'node_modules/two': { ...two, version: '2.0.1' } }, false],
  ['another build of a version', { 'node_modules/one': one, 'node_modules/two': { ...two, integrity: 'x' } }, false],
])('installed or not: %s', (_, installed, expected) => {
  lay({ '': { name: 'root' }, 'node_modules/one': one, 'node_modules/two': two }, installed);
  expect(isInstalled(folder)).toBe(expected);
});

test('a package for another platform need not be there', () => {
  lay(
    { '': {}, 'node_modules/one': one, 'node_modules/for-windows': { ...two, optional: true } },
    { 'node_modules/one': one },
  );
  expect(isInstalled(folder)).toBe(true);
});

test('a package whose folder somebody removed is not installed', () => {
  lay({ '': {}, 'node_modules/one': one }, { 'node_modules/one': one });
  rmSync(path.join(folder, 'node_modules', 'one'), { recursive: true });
  expect(isInstalled(folder)).toBe(false);
});

/** A checkout with a lock file, and what npm would have installed. */
function lay(locked: object, installed: object | null): void {
  mkdirSync(folder, { recursive: true });
  writeFileSync(path.join(folder, 'package-lock.json'), JSON.stringify({ packages: locked }));
  if (!installed) return;
  for (const where of Object.keys(installed)) {
    mkdirSync(path.join(folder, where), { recursive: true });
    writeFileSync(path.join(folder, where, 'package.json'), '{}');
  }
  writeFileSync(path.join(folder, 'node_modules', '.package-lock.json'), JSON.stringify({ packages: installed }));
}
