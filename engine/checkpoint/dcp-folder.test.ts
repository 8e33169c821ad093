import { readdirSync, readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { type ByteSource, bytesSource, sliceSource } from './byte-source.ts';
import type { CheckpointContent, TensorContent } from './checkpoint-content.ts';
import { type DcpFolder, META_FILE, openDcpFolder } from './dcp-folder.ts';
import { chunkRows, folderMetadata, rankFileName, writeMetaFile, writeRankFile } from './dcp-folder-writer.ts';
import { METADATA_FILE } from './dcp-metadata.ts';
import { elementCount } from './dtype.ts';
import { memorySink } from './fixtures/memory-sink.ts';
import { readTensor } from './fixtures/read-tensor.ts';
import { readPickle } from './pickle-reader.ts';
import type { PyDict } from './python-value.ts';
import { openTorchFile } from './torch-file.ts';
import { isTensor, torchGlobals, torchPersistent } from './torch-globals.ts';
import { openZip, readZipEntry } from './zip-reader.ts';

const REFERENCE = new URL('../testdata/demo-transformer/', import.meta.url);
const SAVE_ID = '0123456789abcdef';

function realFolder(name: string): ReadonlyMap<string, ByteSource> {
  const folder = new URL(`${name}/`, REFERENCE);
  return new Map(readdirSync(folder).map((file) => [file, bytesSource(file, readFileSync(new URL(file, folder)))]));
}

const SHAPES: Readonly<Record<string, readonly number[]>> = {
  matrix: [13, 3],
  'narrow.bias': [2],
  single: [1, 5],
  cube: [4, 2, 3],
  scalar: [],
  empty: [0, 3],
};

/** A tensor with recognisable elements; it counts what is asked of it. */
function tensor(name: string, shape: readonly number[], asked: { elements: number } = { elements: 0 }): TensorContent {
  return {
    kind: 'tensor-content',
    dtype: 'float32',
    shape,
    async *read(first, count) {
      asked.elements += count;
      const values = Float32Array.from({ length: count }, (_, i) => first + i + name.length / 64);
      yield new Uint8Array(values.buffer);
    },
  };
}

const expected = (name: string, first: number, count: number) =>
  Float32Array.from({ length: count }, (_, i) => first + i + name.length / 64);

function content(asked?: { elements: number }): CheckpointContent {
  const model = new Map(Object.entries(SHAPES).map(([name, shape]) => [name, tensor(name, shape, asked)]));
  return {
    model: model.set('tied', model.get('matrix')!),
    optimizer: {
      state: new Map([['matrix', new Map([['exp_avg', tensor('avg', SHAPES.matrix, asked)]])]]),
      groups: [
        new Map<string, number | string[]>([
          ['lr', 0.5],
          ['params', ['matrix']],
        ]),
      ],
    },
    rest: new Map([['iter', 7]]),
  };
}

/** What `world` ranks write, as the files of a folder. */
async function save(world: number, source = content(), saveId = SAVE_ID): Promise<Map<string, ByteSource>> {
  const files = new Map<string, ByteSource>();
  const entries = [];
  for (let rank = 0; rank < world; rank++) {
    const sink = memorySink();
    entries.push(...(await writeRankFile(source, rank, world, saveId, sink)));
    files.set(rankFileName(rank), bytesSource(rankFileName(rank), sink.bytes()));
  }
  const meta = memorySink();
  await writeMetaFile(source.rest, saveId, meta);
  files.set(META_FILE, bytesSource(META_FILE, meta.bytes()));
  return files.set(METADATA_FILE, bytesSource(METADATA_FILE, folderMetadata(source, entries)));
}

async function rowsOf(folder: DcpFolder, name: string, first: number, count: number) {
  const width = elementCount(folder.tensors.get(name)!.shape.slice(1));
  return new Float32Array((await folder.readElements(name, first * width, count * width)).buffer);
}

const openedValue = async (folder: DcpFolder, name: string) => (await folder.openValue(name)).value;

describe('saved by any number of ranks, loaded by any number', () => {
  // Reports 9 (N > dimension 0), 10 (all pairs), 11 (no conversion), 12 (N = 1)
  const worlds = [1, 2, 3, 4, 5, 6, 7, 8];
  test.each(worlds)('9.9, 9.10, 9.11, 9.12: saved by %d, loaded by 1 to 8', async (world) => {
    const folder = await openDcpFolder('run', await save(world));
    for (const loaders of worlds) {
      for (const [name, shape] of Object.entries(SHAPES)) {
        const rowElements = elementCount(shape.slice(1));
        for (let rank = 0; rank < loaders; rank++) {
          const { first, count } = chunkRows(shape[0] ?? 1, rank, loaders);
          expect(await rowsOf(folder, `model.${name}`, first, count)).toEqual(
            expected(name, first * rowElements, count * rowElements),
          );
        }
      }
    }
    await folder.verify();
  });

  test('a size of 8 over 5 ranks is 2, 2, 2, 2 and nothing, as torch.chunk has it', () => {
    expect([0, 1, 2, 3, 4].map((rank) => chunkRows(8, rank, 5).count)).toEqual([2, 2, 2, 2, 0]);
  });

  test('9.1: a rank is asked for its own rows and no others', async () => {
    const asked = { elements: 0 };
    await writeRankFile(content(asked), 3, 4, SAVE_ID, memorySink());
    // The last of four: one row of 13 (a tied tensor once, its state once), nothing of the others but a plane of the cube.
    expect(asked.elements).toBe(3 + 3 + 6);
  });

  test('9.3: what a rank writes falls with the number of ranks', async () => {
    const large = { ...content(), model: new Map([['w', tensor('w', [4096, 16])]]), optimizer: null };
    const bytesOf = async (world: number) => {
      const sink = memorySink();
      await writeRankFile(large, 0, world, SAVE_ID, sink);
      return sink.bytes().length;
    };
    const [alone, ...shared] = await Promise.all([1, 2, 4, 8].map(bytesOf));
    for (const [i, bytes] of shared.entries()) expect(bytes).toBeLessThan(alone / 2 ** (i + 1) + 4096);
  });

  test('9.50: every pickle in the folder is one that torch reads with weights_only', async () => {
    const files = await save(2);
    const folder = await openDcpFolder('run', files);
    const places = [...folder.tensors.values()].flatMap(({ parts }) => parts.map(({ place }) => place));
    places.push(...[...folder.values.values()].map(({ place }) => place));
    const whole = { file: META_FILE, start: 0, bytes: files.get(META_FILE)!.bytes };
    const named = new Set<string>();
    for (const { file, start, bytes } of [...places, whole]) {
      const archive = await openZip(sliceSource(files.get(file)!, start, bytes));
      const pickle = await readZipEntry(archive, archive.entries.get('archive/data.pkl')!, 1e6);
      expect([...pickle.subarray(0, 2)]).toEqual([0x80, 2]); // protocol 2
      const globals = (module: string, name: string) => {
        named.add(`${module}.${name}`);
        return torchGlobals(module, name);
      };
      readPickle(pickle, { file, globals, persistent: torchPersistent });
    }
    expect([...named].sort()).toEqual([
      'collections.OrderedDict',
      'torch.FloatStorage',
      'torch._utils._rebuild_tensor_v2',
    ]);
  });

  test('options, state, other keys', async () => {
    const folder = await openDcpFolder('run', await save(3));
    expect(await openedValue(folder, 'optimizer.param_groups.0.lr')).toBe(0.5);
    expect(await openedValue(folder, 'optimizer.param_groups.0.params')).toEqual(['matrix']);
    expect(folder.values.get('optimizer.param_groups.0.lr')!.path).toEqual(['optimizer', 'param_groups', 0, 'lr']);
    expect(folder.tensors.get('optimizer.state.matrix.exp_avg')!.path).toEqual([
      'optimizer',
      'state',
      'matrix',
      'exp_avg',
    ]);
    expect((folder.metaFile!.value as PyDict).get('iter')).toBe(7);
  });

  test('a tied tensor is written once and found under both names', async () => {
    const folder = await openDcpFolder('run', await save(2));
    expect(folder.tensors.get('model.tied')!.parts).toHaveLength(2);
    expect(await rowsOf(folder, 'model.tied', 5, 6)).toEqual(expected('matrix', 15, 18));
    const places = [folder.tensors.get('model.tied')!, folder.tensors.get('model.matrix')!].map(({ parts }) =>
      parts.map(({ place }) => [place.file, place.start]),
    );
    expect(places[0]).toEqual(places[1]);
  });

  test('9.54: an optimizer without state keeps its empty state', async () => {
    const stateless = { ...content(), optimizer: { state: new Map(), groups: content().optimizer!.groups } };
    const folder = await openDcpFolder('run', await save(2, stateless));
    expect(await openedValue(folder, 'optimizer.state')).toEqual(new Map());
    expect(folder.values.get('optimizer.state')!.path).toEqual(['optimizer', 'state']);
  });

  test('a rank whose entries never came is named', async () => {
    const entries = await writeRankFile(content(), 0, 2, SAVE_ID, memorySink());
    expect(() => folderMetadata(content(), entries)).toThrow(/did not write all of model\.matrix: rows 7 to 12 of 13/);
  });
});

describe('real folders', () => {
  test.each([
    ['dcp_fsdp1_ws2', 'optimizer_0', 481],
    ['dcp_fsdp2_ws2', 'optimizer', 481],
    ['fabric_fsdp_sharded_ws1', 'optimizer', 280],
  ])('%s is whole, every CRC right', async (name, optimizer, places) => {
    const folder = await openDcpFolder(name, realFolder(name));
    expect(folder.tensors.size + folder.values.size).toBe(280);
    const parts = [...folder.tensors.values()].reduce((sum, { parts }) => sum + parts.length, 0);
    expect(parts + folder.values.size).toBe(places);
    expect(await openedValue(folder, `${optimizer}.param_groups.0.lr`)).toBe(0.001);
    expect((await openedValue(folder, `${optimizer}.param_groups.0.params`)) as string[]).toHaveLength(67);
    await folder.verify();
  });

  test('9.12: FSDP1 and FSDP2 of one training hold the same bits; world 1 holds those of the full file', async () => {
    const [one, two] = await Promise.all(
      ['dcp_fsdp1_ws2', 'dcp_fsdp2_ws2'].map((name) => openDcpFolder(name, realFolder(name))),
    );
    for (const { name, shape } of one.tensors.values()) {
      const elements = elementCount(shape);
      const twin = await two.readElements(name.replace('optimizer_0', 'optimizer'), 0, elements);
      expect(Buffer.compare(await one.readElements(name, 0, elements), twin), name).toBe(0);
    }
    const sharded = await openDcpFolder('w1', realFolder('fabric_fsdp_sharded_ws1'));
    const full = await openTorchFile(bytesSource('full', readFileSync(new URL('fabric_fsdp_full_ws1', REFERENCE))));
    let compared = 0;
    for (const { path, name, shape } of sharded.tensors.values()) {
      let value = full.value;
      for (const key of path) value = value instanceof Map ? value.get(key)! : null;
      if (!isTensor(value)) throw new Error(name);
      const elements = await sharded.readElements(name, 0, elementCount(shape));
      expect(Buffer.compare(elements, await readTensor(full, value)), name).toBe(0);
      compared++;
    }
    expect(compared).toBe(268);
  });

  test('rows across the border of two chunks', async () => {
    const folder = await openDcpFolder('dcp_fsdp1_ws2', realFolder('dcp_fsdp1_ws2'));
    const whole = await rowsOf(folder, 'model.embedding.weight', 0, 97);
    expect(await rowsOf(folder, 'model.embedding.weight', 47, 4)).toEqual(whole.subarray(47 * 32, 51 * 32));
    await expect(rowsOf(folder, 'model.embedding.weight', 96, 2)).rejects.toMatchObject({ code: 'internal' });
  });
});

describe('refused by name', () => {
  const cut = (source: ByteSource, bytes: number) => ({ ...source, bytes });

  test('9.56: a rank file of another save', async () => {
    const [files, others] = [await save(3), await save(3, content(), 'another save, of equal length'.slice(0, 16))];
    files.set('__1_0.distcp', others.get('__1_0.distcp')!);
    await expect(openDcpFolder('run', files)).rejects.toThrow(/__1_0\.distcp is of another save than meta\.pt/);
  });

  test('a folder of torch that took our key along with others is not ours', async () => {
    const files = new Map(realFolder('fabric_fsdp_sharded_ws1'));
    const sink = memorySink();
    await writeMetaFile(new Map([['iter', 5]]), SAVE_ID, sink);
    files.set(META_FILE, bytesSource(META_FILE, sink.bytes()));
    expect((await openDcpFolder('run', files)).tensors.size).toBe(268);
  });

  test('a file that is missing or short, a folder without metadata', async () => {
    const files = await save(2);
    const file = files.get('__1_0.distcp')!;
    const short = new Map(files).set('__1_0.distcp', cut(file, file.bytes - 1));
    await expect(openDcpFolder('run', short)).rejects.toThrow(/__1_0\.distcp has \d+ bytes and is cut short/);
    const without = (name: string) => new Map([...files].filter(([key]) => key !== name));
    await expect(openDcpFolder('run', without('__1_0.distcp'))).rejects.toThrow(/__1_0\.distcp is missing/);
    await expect(openDcpFolder('run', without(METADATA_FILE))).rejects.toThrow(/has no \.metadata/);
  });

  test('a changed byte in an entry, by its CRC', async () => {
    const files = await save(2);
    const file = files.get('__1_0.distcp')!;
    const bytes = await file.read(0, file.bytes);
    const folder = await openDcpFolder('run', files);
    const { place } = folder.tensors.get('model.matrix')!.parts[1];
    bytes[place.start + 640] ^= 1;
    files.set('__1_0.distcp', bytesSource('__1_0.distcp', bytes));
    await expect(openDcpFolder('run', files).then((opened) => opened.verify())).rejects.toMatchObject({
      code: 'bad-file',
    });
  });
});
