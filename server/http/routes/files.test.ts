import { mkdir, readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { openTestStudio, type TestStudio } from '../../fixtures/test-studio.ts';

let test: TestStudio;
let uploads: string;
beforeAll(async () => {
  test = await openTestStudio();
  uploads = join(test.dataFolder, 'uploads');
}, 60_000);
afterAll(() => test?.close());

async function bring(kind: string, name: string, body: Uint8Array) {
  const address = `${test.studio.address}/api/v1/files?kind=${kind}&name=${encodeURIComponent(name)}`;
  const headers = { 'content-type': 'application/octet-stream' };
  const answer = await fetch(address, { method: 'POST', body: new Uint8Array(body), headers });
  return { status: answer.status, ...((await answer.json()) as { path?: string; error?: { message: string } }) };
}

it('a file is on disk under the name that is told, however its own is cut', async () => {
  for (const start of ['', 'a']) {
    const { path } = await bring('text', `${start}${'𠮷'.repeat(60)}.txt`, Buffer.from('words'));
    expect(await readFile(join(test.dataFolder, path!), 'utf8')).toBe('words');
    expect(await readdir(uploads)).toContain(path!.slice('uploads/'.length));
  }
});

it('a folder that has the name of a file, or of its digests, does not keep the file out', async () => {
  for (const folder of ['b.json', 'zoo.pt.sha256']) await mkdir(join(uploads, folder));
  expect(await bring('batches', 'b.json', Buffer.from('[]'))).toMatchObject({
    status: 201,
    path: expect.stringMatching(/^uploads\/b-[0-9a-f]{8}\.json$/),
  });
  const zoo = await readFile(fileURLToPath(new URL('../../../engine/testdata/zoo.pt', import.meta.url)));
  expect(await bring('weights', 'zoo.pt', zoo)).toMatchObject({
    status: 201,
    path: expect.stringMatching(/^uploads\/zoo-[0-9a-f]{8}\.pt$/),
  });
}, 30_000);
