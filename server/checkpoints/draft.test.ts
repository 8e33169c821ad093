import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { beginCheckpointFolder, commitCheckpointFolder, readDigestList } from '../../engine/node/checkpoint-folder.ts';
import { inDraft, placeDraftFreely } from './draft.ts';
import { importCheckpoint } from './import-checkpoint.ts';

const DIGEST = 'a'.repeat(64);
let uploads: string;
beforeAll(async () => {
  uploads = await mkdtemp(join(tmpdir(), 'draft-'));
});
afterAll(() => rm(uploads, { recursive: true, force: true }));

it('drafts of one name that are done at once each get a name, which their lists of digests say', async () => {
  const made = await Promise.all(
    [1, 2, 3].map((content) =>
      inDraft(uploads, 'x', async (draft) => {
        const temporary = await beginCheckpointFolder(join(draft.folder, 'x'));
        await writeFile(join(temporary, '.metadata'), `${content}`);
        await commitCheckpointFolder(temporary, join(draft.folder, 'x'), [
          { name: '.metadata', bytes: 1, sha256: DIGEST },
        ]);
        const name = await placeDraftFreely(draft, 'x', { stem: 'x', ending: '' }, uploads);
        return { name, content };
      }),
    ),
  );
  expect(made.map(({ name }) => name).sort()).toEqual(['x', 'x-2', 'x-3']);
  for (const { name, content } of made) {
    expect(await readFile(join(uploads, name, '.metadata'), 'utf8')).toBe(`${content}`);
    expect(await readDigestList(join(uploads, name))).toEqual(new Map([['.metadata', DIGEST]]));
  }
  const all = ['x', 'x-2', 'x-2.sha256', 'x-3', 'x-3.sha256', 'x.sha256'];
  expect((await readdir(uploads)).sort()).toEqual(all);
});

it('files of one name that are done at once: each content once, its digest beside it', async () => {
  const zoo = await readFile(fileURLToPath(new URL('../../engine/testdata/zoo.pt', import.meta.url)));
  const arrive = async () => {
    const source = (async function* () {
      yield zoo;
    })();
    const { signal } = new AbortController();
    return importCheckpoint({ source, brought: 'z.pt', name: 'z.pt', maxBytes: 2 ** 30, signal }, uploads);
  };
  const [one, other] = await Promise.all([arrive(), arrive()]);
  expect([one.name, other.name]).toEqual(['z.pt', 'z.pt']);
  expect(await readFile(join(uploads, 'z.pt.sha256'), 'utf8')).toBe(`${one.sha256}  z.pt\n`);
  // What another program has put at the name: the second one.
  await rm(join(uploads, 'z.pt'));
  await mkdir(join(uploads, 'z.pt'));
  const third = await arrive();
  expect(third.name).toBe(`z-${one.sha256.slice(0, 8)}.pt`);
  expect(await readFile(join(uploads, `${third.name}.sha256`), 'utf8')).toBe(`${one.sha256}  ${third.name}\n`);
  expect((await readdir(uploads)).filter((name) => name.startsWith('.'))).toEqual([]);
}, 60_000);
