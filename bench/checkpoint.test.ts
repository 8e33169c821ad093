import { mkdir, mkdtemp, open, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { crc32 } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { ByteSink } from '../engine/checkpoint/byte-source.ts';
import type { CheckpointContent, TensorContent } from '../engine/checkpoint/checkpoint-content.ts';
import { writeWeights } from '../engine/checkpoint/convert-checkpoint.ts';
import { META_FILE } from '../engine/checkpoint/dcp-folder.ts';
import { folderMetadata, rankFileName, writeMetaFile, writeRankFile } from '../engine/checkpoint/dcp-folder-writer.ts';
import { METADATA_FILE } from '../engine/checkpoint/dcp-metadata.ts';
import { CheckpointProcess } from './checkpoint-process.ts';

const GIB = 2 ** 30;
const BOUND_BYTES = 256 * 2 ** 20;
const ZEROS = new Uint8Array(4 * 2 ** 20);

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(path.join(tmpdir(), 'large-checkpoint-'));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

/** A file of this content, its zeros left out as holes: 4 GiB take no room on the disk. */
async function sparseFile<T>(name: string, write: (sink: ByteSink) => Promise<T>): Promise<T> {
  const file = await open(path.join(folder, name), 'w');
  let at = 0;
  const sink: ByteSink = {
    crc32,
    async write(chunk) {
      const hole = chunk.buffer === ZEROS.buffer;
      if (!hole) await file.write(chunk, 0, chunk.length, at);
      at += chunk.length;
    },
  };
  const result = await write(sink);
  await file.truncate(at);
  await file.close();
  return result;
}

/** 4 GiB of zeros: one tensor of 1 GiB, the others of 256 MiB. */
function largeContent(): CheckpointContent {
  const zeros = (rows: number): TensorContent => ({
    kind: 'tensor-content',
    dtype: 'float32',
    shape: [rows, 1024],
    *read(_first, count) {
      for (let left = count * 4; left > 0; left -= ZEROS.length) yield ZEROS.subarray(0, Math.min(ZEROS.length, left));
    },
  });
  const rows = [GIB / 4096, ...Array.from({ length: 12 }, () => GIB / 16_384)];
  return {
    model: new Map(rows.map((count, i) => [`layers.${i}.weight`, zeros(count)])),
    optimizer: null,
    rest: new Map([['iter', 1]]),
  };
}

describe('a checkpoint of 4 GiB: memory grows by less than 256 MiB', { timeout: 300_000 }, () => {
  const content = largeContent();
  beforeAll(async () => {
    await mkdir(path.join(folder, 'sharded'));
    const entries = [];
    for (const rank of [0, 1]) {
      const write = (sink: ByteSink) => writeRankFile(content, rank, 2, 'large', sink);
      entries.push(...(await sparseFile(`sharded/${rankFileName(rank)}`, write)));
    }
    await sparseFile(`sharded/${META_FILE}`, (sink) => writeMetaFile(content.rest, 'large', sink));
    await writeFile(path.join(folder, 'sharded', METADATA_FILE), folderMetadata(content, entries));
    await sparseFile('weights.safetensors', (sink) => writeWeights(content, sink));
  });

  test.each([
    ['inspect', 'sharded'],
    ['verify', 'sharded'],
    ['load', 'sharded'],
    ['download', 'sharded'],
    ['archive', 'sharded'],
    ['download', 'weights.safetensors'],
  ] as const)('%s of %s', async (action, name) => {
    const file = path.join(folder, name);
    // An archive holds what the list of digests names; it does not compute them again.
    if (action === 'archive') {
      const lines = (await readdir(file)).map((part) => `${'0'.repeat(64)}  ${name}/${part}\n`);
      await writeFile(`${file}.sha256`, lines.join(''));
    }
    const job = { action, path: file, to: '', kind: 'full', model: {}, rank: 0, ranks: 1 } as const;
    const { growthBytes } = await (await CheckpointProcess.start(job)).go();
    expect(growthBytes).toBeGreaterThan(0);
    expect(growthBytes).toBeLessThan(BOUND_BYTES);
  });
});
