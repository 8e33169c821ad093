import { spawnSync } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { printable, printableLines } from './output.ts';

it('no control character of a name reaches a terminal; lines stay lines', () => {
  expect(printable('a\u001b[2J\u0007\n\u202eb')).toBe('a\\u001b[2J\\u0007\\u000a\\u202eb');
  expect(printableLines('first\u001b[1m\nsecond')).toBe('first\\u001b[1m\nsecond');
});

it('an error that names a file escapes what its name has, and so does one of the command line', async () => {
  const place = await mkdtemp(join(tmpdir(), 'output-'));
  const named = join(place, 'a\u001b]0;title\u0007.ckpt');
  await writeFile(named, 'no checkpoint');
  const cli = fileURLToPath(new URL('../cli.ts', import.meta.url));
  for (const args of [['checkpoint', 'inspect', named], ['\u001b[2J'], ['train', `${named}.yaml`]]) {
    const { stderr, status } = spawnSync(process.execPath, ['--import', 'tsx', cli, ...args], { encoding: 'utf8' });
    expect(status, stderr).toBeGreaterThan(0);
    expect(stderr).toContain('\\u001b');
    // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
    expect(stderr).not.toMatch(/[\u0000-\u0009\u000b-\u001f\u007f-\u009f]/);
  }
  await rm(place, { recursive: true });
});
