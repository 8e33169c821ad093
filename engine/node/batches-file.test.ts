import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { readBatchesFile } from './batches-file.ts';

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'batches-'));
});
afterEach(() => rmSync(folder, { recursive: true }));

it('reads the reference file', async () => {
  const path = fileURLToPath(new URL('../testdata/demo-transformer/batches.json', import.meta.url));
  const { name, entries } = await readBatchesFile(path);
  expect([name, entries.length, entries[0].length, entries[19][1].input.length]).toEqual([path, 20, 2, 36]);
});

it.each<[string, string | Buffer, RegExp]>([
  ['text', 'root:x:0:0', /b\.json is not JSON\. Give a JSON file of batches\[step\]\[rank\]/],
  ['nothing', '', /b\.json is empty/],
  ['bytes', Buffer.of(0x5b, 0xff), /b\.json is not UTF-8 at byte 1/],
  ['another form', '{"input":[1]}', /b\.json: expected a list/],
])('refuses %s without quoting it', async (_, content, message) => {
  const path = join(folder, 'b.json');
  writeFileSync(path, content);
  const error = await readBatchesFile(path).then(
    () => null,
    (reason: Error) => reason,
  );
  expect(error).toMatchObject({ code: 'bad-data', message: expect.stringMatching(message) });
  expect(`${error?.message}${error?.cause}`).not.toContain('root');
});

it('refuses a file that is absent', async () => {
  await expect(readBatchesFile(join(folder, 'none.json'))).rejects.toMatchObject({ code: 'bad-data' });
});
