import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { trainRun } from './fixtures/train-run.ts';

/** What a path may hold that is no checkpoint: said before a run starts, with the person's own setting and path. */

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'no-checkpoint-'));
});
afterAll(() => rm(folder, { recursive: true }));

const places: readonly [what: string, make: (path: string) => Promise<unknown>][] = [
  ['nothing', async () => undefined],
  ['an empty folder', (path) => mkdir(path)],
  [
    'a folder without .metadata and meta.pt',
    async (path) => {
      await mkdir(path);
      await writeFile(join(path, '__0_0.distcp'), 'x');
    },
  ],
  ['a text', (path) => writeFile(path, 'hello world')],
  ['an empty file', (path) => writeFile(path, '')],
];

it.each(places)('to go on from %s is refused in words', async (what, make) => {
  const path = join(folder, what.replaceAll(/\W/g, '-'));
  await make(path);
  for (const config of [{ checkpoint: { resume: path, atEnd: false } }, { init: { from: path } }]) {
    const steps: unknown[] = [];
    const error = await trainRun(join(folder, 'run'), config, {
      emit: (event) => event.event === 'step' && steps.push(event),
    }).then(
      () => null,
      (thrown: Error & { code?: string }) => thrown,
    );
    expect(error?.code, what).toMatch(/^(not-found|bad-file)$/);
    expect(error?.message).toContain(path);
    expect(steps).toEqual([]);
  }
});
