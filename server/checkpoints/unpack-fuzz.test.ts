import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { mutate, randomFrom } from '../../engine/checkpoint/fixtures/mutate.ts';
import { StudioError } from '../../engine/errors.ts';
import { TAR_BLOCK, TAR_END_BYTES, tarHeader, tarPadding } from './tar-format.ts';
import { unpackArchive } from './unpack-archive.ts';

const CASES = 500;
const MAX_BYTES = 64 * 1024;

const entry = (name: string, data: Buffer) =>
  Buffer.concat([tarHeader(name, data.length), data, Buffer.alloc(tarPadding(data.length))]);
const archive = new Uint8Array(
  Buffer.concat([
    entry('step/.metadata', Buffer.alloc(700, 1)),
    entry('step/__0_0.distcp', Buffer.alloc(512, 2)),
    entry('step.sha256', Buffer.from(`${'a'.repeat(64)}  step/.metadata\n`)),
    Buffer.alloc(TAR_END_BYTES),
  ]),
);

/** Makes the sums of all blocks right that stood where a header stands: a change is then seen by what reads it. */
function resummed(bytes: Buffer): Buffer {
  for (const at of [0, 3 * TAR_BLOCK, 5 * TAR_BLOCK]) {
    const block = bytes.subarray(at, at + TAR_BLOCK);
    if (block.length < TAR_BLOCK) continue;
    block.fill(0x20, 148, 156);
    const sum = block.reduce((total, byte) => total + byte, 0);
    block.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148);
  }
  return bytes;
}

it(`${CASES} changed archives: unpacked within the folder and the bound, or refused by a typed error`, async () => {
  const folder = await mkdtemp(join(tmpdir(), 'unpack-fuzz-'));
  let refused = 0;
  let unpacked = 0;
  try {
    for (let seed = 1; seed <= CASES; seed++) {
      const random = randomFrom(seed);
      const changed = Buffer.from(mutate(archive, random));
      const bytes = seed % 2 ? resummed(changed) : changed;
      const into = join(folder, String(seed));
      const source = (async function* () {
        for (let at = 0; at < bytes.length; at += 300) yield bytes.subarray(at, at + 300);
      })();
      try {
        const { files } = await unpackArchive(source, into, MAX_BYTES);
        expect((await readdir(into)).sort(), `seed ${seed}`).toEqual(files.map(({ name }) => name).sort());
        expect(files.reduce((sum, file) => sum + file.bytes, 0)).toBeLessThanOrEqual(MAX_BYTES);
        unpacked++;
      } catch (error) {
        if (!(error instanceof StudioError)) throw new Error(`seed ${seed}: not a typed error`, { cause: error });
        expect(['bad-file', 'too-large'], `seed ${seed}`).toContain(error.code);
        refused++;
      }
    }
    expect(refused).toBeGreaterThan(CASES / 4);
    expect(unpacked).toBeGreaterThan(CASES / 20);
    // Nothing beside the folders that were asked for.
    expect((await readdir(folder)).every((name) => /^\d+$/.test(name))).toBe(true);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}, 60_000);
