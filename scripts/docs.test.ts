import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { expect, test } from 'vitest';
import { COMMANDS } from '../server/commands/usage.ts';

const root = path.resolve(import.meta.dirname, '..');
const read = (name: string) => readFileSync(path.join(root, name), 'utf8');
const pages = ['README.md', 'ARCHITECTURE.md'];

/**
 * Files of the repository that a page names: targets of links (but for pictures, which the browser tests make), and words
 * in code that begin with a folder of ours.
 */
function filesNamed(text: string): string[] {
  const links = [...text.matchAll(/\]\(([^)#]+)\)/g)].map(([, target]) => target);
  const words = [...text.matchAll(/`((?:app|server|engine|prisma|scripts|bench|\.ci)\/[^`\s]*)`/g)].map(
    ([, word]) => word,
  );
  return [...links, ...words].filter((name) => !/^https?:|NAME|^docs\/images\//.test(name));
}

test.each(pages)('%s names files that are there', (page) => {
  const names = filesNamed(read(page));
  expect(names.length).toBeGreaterThan(10);
  expect(names.filter((name) => !existsSync(path.join(root, name)))).toEqual([]);
});

test("the README's config is the one that its commands run", () => {
  const [, yaml] = /```yaml\n([\s\S]*?)```/.exec(read('README.md'))!;
  expect(yaml).toBe(read('docs/examples/first-run.yaml'));
});

test('the README lists the commands that there are, with their options', () => {
  const rows = [...read('README.md').matchAll(/^\| `([a-z]+) ?([^`]*)` \|/gm)];
  const options = (text: string) => [...text.matchAll(/--[a-z-]+/g)].map(String).sort();
  expect(rows.map(([, name]) => name).sort()).toEqual(Object.keys(COMMANDS).sort());
  for (const [name, { takes }] of Object.entries(COMMANDS))
    expect([name, options(rows.find((row) => row[1] === name)![2])]).toEqual([name, options(takes)]);
});
