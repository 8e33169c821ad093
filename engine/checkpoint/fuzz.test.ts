import { readFileSync } from 'node:fs';
import { deflateRawSync } from 'node:zlib';
import { beforeAll, describe, expect, test } from 'vitest';
import { StudioError } from '../errors.ts';
import { type ByteSource, bytesSource } from './byte-source.ts';
import { type CheckpointContent, contentTree, type TensorContent } from './checkpoint-content.ts';
import { convertCheckpoint } from './convert-checkpoint.ts';
import { folderMetadata } from './dcp-folder-writer.ts';
import { readDcpMetadata } from './dcp-metadata.ts';
import { elementCount } from './dtype.ts';
import { memorySink } from './fixtures/memory-sink.ts';
import { mutate, randomFrom } from './fixtures/mutate.ts';
import { inflatedSource } from './inflated-source.ts';
import { type CheckpointInput, openCheckpoint } from './open-checkpoint.ts';
import { toPlain } from './python-value.ts';
import { checkpointContent } from './run-content.ts';
import { isStoredTensor, listTensors, type StoredCheckpoint } from './stored-checkpoint.ts';
import { openOptimizer } from './stored-optimizer.ts';
import { writeTorchFile } from './torch-file-writer.ts';
import { openZip, readZipEntry } from './zip-reader.ts';
import { ZipWriter } from './zip-writer.ts';

/** 10,000 changed files in all. Each must be read or refused by a typed error, soon, within bounds. */
const CASES = { zoo: 700, pickle: 2000, legacy: 2200, full: 700, safetensors: 2000, folder: 2200, metadata: 200 };
/** For a longer search: FUZZ_SEED=20000 begins elsewhere. */
const FIRST_SEED = Number(process.env.FUZZ_SEED ?? 1);
const MOST_MS = 3000;
/** How much larger the process may become, the engine's own garbage included. */
const MOST_BYTES = 512 * 2 ** 20;

/** Everything that a reader does: opens, lists, reads every element, the optimizer, checks every CRC. */
async function readAll(input: CheckpointInput): Promise<void> {
  const checkpoint = await openCheckpoint(input, { expectedNames: ['a'] });
  listTensors(checkpoint);
  toPlain(checkpoint.rest);
  for (const { shape, readBytes } of checkpoint.model.values()) await readBytes(0, elementCount(shape));
  await readOptimizer(checkpoint);
  await checkpoint.verify();
}

async function readOptimizer(checkpoint: StoredCheckpoint): Promise<void> {
  const optimizer = await openOptimizer(checkpoint);
  for (const name of optimizer?.names ?? []) {
    await optimizer?.step(name);
    for (const value of optimizer?.content.state.get(name)?.values() ?? []) {
      if (isStoredTensor(value)) await value.readBytes(0, elementCount(value.shape));
    }
  }
}

/** Runs the cases and returns how many were refused, by code. */
async function attack(cases: number, read: (random: (below: number) => number) => Promise<void>) {
  const refused = new Map<string, number>();
  for (let seed = FIRST_SEED; seed < FIRST_SEED + cases; seed++) {
    const start = performance.now();
    try {
      await read(randomFrom(seed));
    } catch (error) {
      if (!(error instanceof StudioError)) throw new Error(`seed ${seed}: not a typed error`, { cause: error });
      refused.set(error.code, (refused.get(error.code) ?? 0) + 1);
    }
    const ms = performance.now() - start;
    if (ms > MOST_MS) throw new Error(`seed ${seed} took ${ms} ms`);
  }
  for (const code of refused.keys()) expect(['bad-file', 'bad-data', 'refused-global', 'too-large']).toContain(code);
  expect([...refused.values()].reduce((sum, count) => sum + count, 0)).toBeGreaterThan(cases / 4);
  expect(process.memoryUsage().rss - rssBefore).toBeLessThan(MOST_BYTES);
}

let rssBefore = 0;
let full: Uint8Array;
let safetensors: Uint8Array;
const folder = new Map<string, Uint8Array>();
const testdata = (name: string) => new Uint8Array(readFileSync(new URL(`../testdata/${name}`, import.meta.url)));

beforeAll(async () => {
  const sink = memorySink();
  await writeTorchFile(contentTree(content()), sink);
  full = sink.bytes();
  const checkpoint = await openCheckpoint({ file: bytesSource('full', full) });
  const weights = memorySink();
  await convertCheckpoint(checkpoint, { kind: 'safetensors', sink: weights });
  safetensors = weights.bytes();
  const file = async (name: string, write: (sink: ReturnType<typeof memorySink>) => Promise<unknown>) => {
    const part = memorySink();
    await write(part);
    folder.set(name, part.bytes());
  };
  await convertCheckpoint(checkpoint, { kind: 'sharded', ranks: 2, saveId: 'x', file });
  rssBefore = process.memoryUsage().rss;
});

function content(): CheckpointContent {
  const parameters = [
    { name: 'a', shape: [5, 3] },
    { name: 'b', shape: [4] },
    { name: 'c', shape: [5, 3], tiedTo: 'a' },
  ];
  const optimizer = { kind: 'adam', lr: 0.1, weightDecay: 0, step: 2 } as const;
  return checkpointContent({ parameters, optimizer, iter: 2, config: { name: 'x' } }, (_name, _part, _first, count) => [
    new Uint8Array(4 * count),
  ]);
}

const one = (name: string, bytes: () => Uint8Array) => (random: (below: number) => number) =>
  readAll({ file: bytesSource(name, mutate(bytes(), random)) });

describe('changed files: a typed error or the content, never a crash, a hang or much memory', () => {
  test.each([
    ['zoo.pt', CASES.zoo, () => testdata('zoo.pt')],
    ['zoo_legacy.pt', CASES.legacy, () => testdata('zoo_legacy.pt')],
    ['a full checkpoint', CASES.full, () => full],
    ['a safetensors file', CASES.safetensors, () => safetensors],
  ])('%s, %d times', { timeout: 120_000 }, (name, cases, bytes) => attack(cases, one(name, bytes)));

  test('a sharded folder, any of its files', { timeout: 120_000 }, () =>
    attack(CASES.folder, (random) => {
      const names = [...folder.keys()];
      // `.metadata` half of the time.
      const victim = random(2) === 0 ? '.metadata' : names[random(names.length)];
      const files = new Map<string, ByteSource>();
      for (const [name, bytes] of folder)
        files.set(name, bytesSource(name, name === victim ? mutate(bytes, random) : bytes));
      return readAll({ folder: 'run', files });
    }),
  );

  test('the pickle of zoo.pt in a zip whose checksums are right', { timeout: 120_000 }, async () => {
    const archive = await openZip(bytesSource('zoo.pt', testdata('zoo.pt')));
    const records = new Map<string, Uint8Array>();
    for (const [name, entry] of archive.entries) records.set(name, await readZipEntry(archive, entry, 1e6));
    await attack(CASES.pickle, async (random) => {
      const sink = memorySink();
      const zip = new ZipWriter(sink);
      for (const [name, whole] of records) {
        const bytes = name.endsWith('data.pkl') ? mutate(whole, random) : whole;
        await zip.record({ name, bytes: bytes.length }, [bytes]);
      }
      await zip.finish();
      await readAll({ file: bytesSource('zoo.pt', sink.bytes()) });
    });
  });

  test('deflated records, beside the 10,000', { timeout: 120_000 }, async () => {
    const content = new Uint8Array(4000).map((_, i) => (i * i) >> 5);
    const packed = deflateRawSync(content);
    await attack(500, async (random) => {
      const source = bytesSource('record', mutate(new Uint8Array(packed), random));
      const inflated = inflatedSource(source, content.length);
      await inflated.read(0, content.length);
    });
  });

  test('the metadata of a real folder', { timeout: 120_000 }, () => {
    const real = testdata('demo-transformer/fabric_fsdp_sharded_ws1/.metadata');
    return attack(CASES.metadata, async (random) => void readDcpMetadata('.metadata', mutate(real, random)));
  });

  test('they are 10,000', () => {
    expect(Object.values(CASES).reduce((sum, cases) => sum + cases, 0)).toBe(10_000);
  });
});

describe('lies about size ask for no memory', () => {
  test('a folder whose metadata claims a tensor of 2^42 bytes in a file of a few hundred', async () => {
    const huge: TensorContent = { kind: 'tensor-content', dtype: 'float32', shape: [2 ** 40], read: () => [] };
    const entry = { name: 'model.w', file: '__0_0.distcp', start: 0, bytes: 100, offsets: [0], sizes: [2 ** 40] };
    const metadata = folderMetadata({ model: new Map([['w', huge]]), optimizer: null, rest: new Map() }, [entry]);
    const files = new Map([
      ['.metadata', bytesSource('.metadata', metadata)],
      ['__0_0.distcp', bytesSource('__0_0.distcp', new Uint8Array(100))],
    ]);
    await expect(openCheckpoint({ folder: 'run', files })).rejects.toThrow(/does not fit the 100 bytes/);
  });
});
