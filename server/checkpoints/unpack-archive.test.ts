import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { TAR_BLOCK, tarHeader } from './tar-format.ts';
import { unpackArchive } from './unpack-archive.ts';

let work: string;
beforeAll(async () => {
  work = await mkdtemp(join(tmpdir(), 'unpack-archive-'));
});
afterAll(() => rm(work, { recursive: true, force: true }));

/** A header of another type than a file's. */
function headerOf(type: string, bytes: number): Buffer {
  const header = tarHeader('step/', bytes);
  header.write(type, 156);
  header.fill(0x20, 148, 156);
  const sum = header.reduce((total, byte) => total + byte, 0);
  header.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148);
  return header;
}

/** As often as it is asked for, up to a number that no refusal needs. */
async function* repeated(block: Buffer, most = 100_000): AsyncGenerator<Buffer> {
  for (let i = 0; i < most; i++) yield block;
}

it.each(['5', 'x', 'g'])('an archive of nothing but headers of type %s is refused by their number', async (type) => {
  const unpacked = unpackArchive(repeated(headerOf(type, 0)), join(work, `number-${type}`), 2 ** 36);
  await expect(unpacked).rejects.toMatchObject({
    code: 'too-large',
    message: expect.stringMatching(/more than 4000 folders and attributes/),
  });
});

it('headers count as bytes of the archive', async () => {
  const unpacked = unpackArchive(repeated(headerOf('5', 0)), join(work, 'bytes'), 100 * TAR_BLOCK);
  await expect(unpacked).rejects.toMatchObject({ code: 'too-large', message: expect.stringMatching(/51200 bytes/) });
});

it('an attribute without end is refused before it is read', async () => {
  const unpacked = unpackArchive(repeated(headerOf('x', 2 ** 30)), join(work, 'attribute'), 2 ** 36);
  await expect(unpacked).rejects.toMatchObject({
    code: 'bad-file',
    message: expect.stringMatching(/too large for a folder or an attribute/),
  });
});
