import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { StudioError } from '../errors.ts';
import { bytesSource } from './byte-source.ts';
import { DTYPES, type DType, dtypeBytes, elementCount, swapBytes } from './dtype.ts';
import { handMadeZip } from './fixtures/hand-made-zip.ts';
import { memorySink } from './fixtures/memory-sink.ts';
import { readTensor } from './fixtures/read-tensor.ts';
import { PickleWriter } from './pickle-writer.ts';
import { PyOrderedDict, type PyValue, tuple } from './python-value.ts';
import { openSafetensors } from './safetensors.ts';
import { openTorchFile, type TorchFile, tensorsIn } from './torch-file.ts';
import { tensorToWrite, torchFileBytes, writeTorchFile } from './torch-file-writer.ts';
import { isTensor, TorchSize, type TorchTensor } from './torch-globals.ts';
import { openZip, readZipEntry } from './zip-reader.ts';
import { ZipWriter } from './zip-writer.ts';

const testdata = (name: string): Uint8Array<ArrayBuffer> =>
  new Uint8Array(readFileSync(new URL(`../testdata/${name}`, import.meta.url)));
const open = (name: string): Promise<TorchFile> => openTorchFile(bytesSource(name, testdata(name)));
const dict = (value: PyValue | undefined): Map<PyValue, PyValue> => {
  if (!(value instanceof Map)) throw new Error('no dict');
  return value;
};
const tensor = (value: PyValue | undefined): TorchTensor => {
  if (!isTensor(value)) throw new Error('no tensor');
  return value;
};
const floats = async (file: TorchFile, value: PyValue | undefined): Promise<Float32Array> =>
  new Float32Array((await readTensor(file, tensor(value))).buffer);

async function failure(bytes: Uint8Array): Promise<StudioError> {
  const error = await openTorchFile(bytesSource('test.pt', bytes)).then(
    () => new Error('it was opened'),
    (reason) => reason,
  );
  if (!(error instanceof StudioError)) throw error;
  return error;
}

/** A zip file as programs make it that compress everything. */
async function deflatedZip(bytes: Uint8Array<ArrayBuffer>): Promise<Uint8Array<ArrayBuffer>> {
  const archive = await openZip(bytesSource('stored.zip', bytes));
  const records = [];
  for (const entry of archive.entries.values())
    records.push({ name: entry.name, data: await readZipEntry(archive, entry, entry.bytes), deflate: true });
  return handMadeZip(records);
}

describe('repacked with deflated records', () => {
  test('of more than 1 MiB and of less, it holds the same, whichever part is read', async () => {
    const state = new PyOrderedDict();
    const names = ['large', 'small'];
    for (const [i, elements] of [700_001, 9].entries()) {
      const values = Float32Array.from({ length: elements }, (_, at) => at % 1013);
      state.set(
        names[i],
        tensorToWrite('float32', [elements], () => [new Uint8Array(values.buffer)]),
      );
    }
    const sink = memorySink();
    await writeTorchFile(state, sink);
    const stored = await openTorchFile(bytesSource('stored.pt', sink.bytes()));
    const repacked = await deflatedZip(sink.bytes());
    expect(repacked.length).toBeLessThan(sink.bytes().length / 4);
    const file = await openTorchFile(bytesSource('deflated.pt', repacked));
    await file.verify();
    for (const name of names) {
      const [as, was] = [file, stored].map(({ value }) => tensor(dict(value).get(name)));
      expect(Buffer.compare(await readTensor(file, as), await readTensor(stored, was))).toBe(0);
    }
    const large = tensor(dict(file.value).get('large'));
    for (const first of [600_000, 300_000, 699_999]) {
      const part = new Float32Array((await file.readElements(large, first, 2)).buffer);
      expect([...part]).toEqual([first % 1013, (first + 1) % 1013]);
    }
  });
});

describe('zoo.pt: every dtype, views, shared storage, containers', () => {
  const COUNTING = Array.from({ length: 24 }, (_, i) => i);

  test('dtypes', async () => {
    const zoo = await open('zoo.pt');
    const top = dict(zoo.value);
    const bytes = async (name: string) => (await readTensor(zoo, tensor(top.get(name)))).buffer;
    const shape = (name: string) => [tensor(top.get(name)).dtype, ...tensor(top.get(name)).shape];
    expect([...new Float32Array(await bytes('f32'))]).toEqual(COUNTING);
    expect([...new Float64Array(await bytes('f64'))]).toEqual(COUNTING);
    expect([...new BigInt64Array(await bytes('i64'))]).toEqual([0n, 1n, 2n, 3n, 4n]);
    expect([...new Int32Array(await bytes('i32'))]).toEqual([0, 1, 2, 3, 4]);
    expect([...new Int16Array(await bytes('i16'))]).toEqual([0, 1, 2, 3, 4]);
    expect([...new Int8Array(await bytes('i8'))]).toEqual([0, 1, 2, 3, 4]);
    expect([...new Uint8Array(await bytes('u8'))]).toEqual([0, 1, 2, 3, 4]);
    expect([...new Uint8Array(await bytes('bool'))]).toEqual([1, 0, 1]);
    expect(new Uint16Array(await bytes('f16'))[23]).toBe(0x4dc0); // 23 = 1.4375 * 16
    expect(new Uint16Array(await bytes('bf16'))[23]).toBe(0x41b8);
    expect([shape('f16'), shape('bf16'), shape('bool')]).toEqual([
      ['float16', 4, 6],
      ['bfloat16', 4, 6],
      ['bool', 3],
    ]);
  });

  test('views and shared storage', async () => {
    const zoo = await open('zoo.pt');
    const top = dict(zoo.value);
    const transposed = COUNTING.map((i) => (i % 4) * 6 + Math.floor(i / 4));
    expect([...(await floats(zoo, top.get('view_T')))]).toEqual(transposed);
    expect([...(await floats(zoo, top.get('slice')))]).toEqual([8, 9, 10, 14, 15, 16]);
    expect(tensor(top.get('view_T')).storage.key).toBe(tensor(top.get('f32')).storage.key);
    const rowsOf = (name: string, first: number, count: number) => {
      const of = tensor(top.get(name));
      const width = elementCount(of.shape.slice(1));
      return zoo.readElements(of, first * width, count * width);
    };
    const rows = await rowsOf('view_T', 2, 2);
    expect([...new Float32Array(rows.buffer)]).toEqual([2, 8, 14, 20, 3, 9, 15, 21]);
    const last = await rowsOf('f32', 3, 1);
    expect([...new Float32Array(last.buffer)]).toEqual([18, 19, 20, 21, 22, 23]);
    expect((await rowsOf('f32', 4, 0)).length).toBe(0);
  });

  test('scalars, empty tensors, parameters and plain values', async () => {
    const zoo = await open('zoo.pt');
    const top = dict(zoo.value);
    expect([...(await floats(zoo, top.get('scalar')))]).toEqual([3.5]);
    expect(tensor(top.get('scalar')).shape).toEqual([]);
    expect(tensor(top.get('empty')).shape).toEqual([0, 3]);
    expect(await readTensor(zoo, tensor(top.get('empty')))).toEqual(new Uint8Array(0));
    expect(tensor(top.get('param')).requiresGrad).toBe(true);
    expect([...(await floats(zoo, top.get('param')))]).toEqual([1, 1, 1, 1]);
    expect(top.get('nested')).toStrictEqual(
      new Map<PyValue, PyValue>([
        ['list', [1, 2.5, 'x', null, true]],
        ['tuple', tuple(1, 2)],
        ['big', 2 ** 40],
        ['neg', -7],
      ]),
    );
    expect(top.get('od')).toBeInstanceOf(PyOrderedDict);
    expect(top.get('size')).toStrictEqual(new TorchSize([2, 3]));
    expect(top.get('dtype')).toEqual({ kind: 'dtype', dtype: 'float16' });
    expect(top.get('device')).toEqual({ kind: 'device', device: 'cpu' });
  });
});

describe('what Fabric wrote', () => {
  const FOLDER = 'demo-transformer';

  test('init.pt equals init.safetensors bit for bit', async () => {
    const file = await open(`${FOLDER}/init.pt`);
    const same = await openSafetensors(bytesSource('init', testdata(`${FOLDER}/init.safetensors`)));
    const model = dict(file.value);
    expect([...model.keys()].sort()).toEqual([...same.tensors.keys()].sort());
    for (const [name, { shape, offset, bytes }] of same.tensors) {
      expect(tensor(model.get(name)).shape).toEqual(shape);
      expect(await readTensor(file, tensor(model.get(name)))).toEqual(await same.source.read(offset, bytes));
    }
  });

  test('fabric_single_step5.ckpt has the sums that torch computed', async () => {
    const file = await open(`${FOLDER}/fabric_single_step5.ckpt`);
    const sums = JSON.parse(new TextDecoder().decode(testdata(`${FOLDER}/fabric_single_step5.sums.json`)));
    const model = dict(dict(file.value).get('model'));
    expect([...model.keys()]).toEqual(Object.keys(sums));
    for (const [name, [sum, squares]] of Object.entries<[number, number]>(sums)) {
      const values = await floats(file, model.get(name));
      expect(values.reduce((total, value) => total + value, 0)).toBeCloseTo(sum, 9);
      expect(values.reduce((total, value) => total + value * value, 0) / squares).toBeCloseTo(1, 12);
    }
    const optimizer = dict(dict(file.value).get('optimizer'));
    const state = dict(dict(optimizer.get('state')).get(66));
    expect([...(await floats(file, state.get('step')))]).toEqual([5]);
    expect(dict(file.value).get('iter')).toBe(5);
    expect(dict(file.value).get('note')).toBe('café');
  });

  test('fabric_fsdp_full_ws1: FSDP wraps every tensor, and its training was the same', async () => {
    const fsdp = await open(`${FOLDER}/fabric_fsdp_full_ws1`);
    const single = await open(`${FOLDER}/fabric_single_step5.ckpt`);
    const model = dict(dict(fsdp.value).get('model'));
    const other = dict(dict(single.value).get('model'));
    expect(model.size).toBe(67);
    for (const [name, value] of model) {
      const theirs = await floats(single, other.get(name));
      const difference = (await floats(fsdp, value)).map((own, i) => Math.abs(own - theirs[i]));
      // Adam makes weights of the rounding noise in the keys' bias, whose true gradient is 0 (design, law 3).
      expect(Math.max(...difference)).toBeLessThan(String(name).endsWith('in_proj_bias') ? 5e-3 : 1e-4);
    }
    const state = dict(dict(dict(fsdp.value).get('optimizer')).get('state'));
    expect([...state.keys()].sort()).toEqual([...model.keys()].sort());
  });

  test('meta.pt of a sharded folder', async () => {
    expect((await open(`${FOLDER}/dcp_fsdp1_ws2/meta.pt`)).value).toStrictEqual(new Map([['iter', 5]]));
  });
});

describe('what is refused', () => {
  test('malicious.pt, naming the global and the file', async () => {
    const error = await open('malicious.pt').catch((reason) => reason);
    expect(error).toMatchObject({ code: 'refused-global', details: { global: 'posix.system' } });
    expect(error.message).toContain('malicious.pt asks for posix.system');
  });

  test('other zip files and other content', async () => {
    const sink = memorySink();
    const zip = new ZipWriter(sink);
    await zip.record({ name: 'readme.txt', bytes: 0 }, []);
    await zip.finish();
    expect((await failure(sink.bytes())).message).toMatch(/no data\.pkl/);
    expect((await failure(new TextEncoder().encode('hello'))).code).toBe('bad-file');
    expect((await failure(new Uint8Array(0))).code).toBe('bad-file');
  });

  test('zoo.pt cut anywhere', async () => {
    const whole = testdata('zoo.pt');
    for (let length = 0; length < whole.length; length += 7) {
      expect((await failure(whole.subarray(0, length))).code).toBe('bad-file');
    }
  });

  test('2,000 files with a few bytes changed: a typed error or a file, never anything else', async () => {
    const originals = ['zoo.pt', 'malicious.pt', 'demo-transformer/dcp_fsdp1_ws2/meta.pt'].map(testdata);
    const random = lcg(11);
    for (let run = 0; run < 2000; run++) {
      const bytes = originals[run % originals.length].slice();
      for (let change = 0; change < 1 + random(3); change++) bytes[random(bytes.length)] = random(256);
      try {
        const file = await openTorchFile(bytesSource('fuzzed.pt', bytes));
        for (const found of tensorsIn(file.value)) await readTensor(file, found);
      } catch (error) {
        if (!(error instanceof StudioError)) throw error;
      }
    }
  });
});

/** Pseudo-random integers below a bound, the same every time. */
function lcg(seed: number): (bound: number) => number {
  let state = seed;
  return (bound) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * bound);
  };
}

interface Claims {
  key?: string;
  elements?: number;
  offset?: number;
  shape?: number[];
  stride?: number[];
  data?: Uint8Array;
  byteOrder?: string;
  dtype?: DType;
}

/** A torch file of one tensor in a list that says whatever a test wants it to say. */
async function claiming({
  key = '0',
  elements = 4,
  offset = 0,
  shape = [4],
  stride = [1],
  data = new Uint8Array(16),
  byteOrder = 'little',
  dtype = 'float32',
}: Claims): Promise<Uint8Array> {
  const pickle = new PickleWriter((_, writer) =>
    writer.persistentId(() =>
      writer.tupleOf(5, () => {
        writer.value('storage');
        writer.global('torch', DTYPES[dtype].storage!);
        for (const item of [key, 'cuda:0', elements]) writer.value(item);
      }),
    ),
  );
  const args: PyValue[] = [{ kind: 'storage' }, offset, tuple(...shape), tuple(...stride), false, new PyOrderedDict()];
  pickle.reduce('torch._utils', '_rebuild_tensor_v2', args);
  const sink = memorySink();
  const zip = new ZipWriter(sink);
  const records = new Map([
    ['x/data.pkl', pickle.finish()],
    ['x/data/0', data],
    ['x/byteorder', new TextEncoder().encode(byteOrder)],
  ]);
  for (const [name, content] of records) await zip.record({ name, bytes: content.length }, [content]);
  await zip.finish();
  return sink.bytes();
}

describe('tensors against their storage', () => {
  test('an honest file, from a GPU, opens', async () => {
    const file = await openTorchFile(
      bytesSource('x', await claiming({ data: new Uint8Array(Float32Array.of(1, 2, 3, 4).buffer) })),
    );
    expect([...(await floats(file, file.value))]).toEqual([1, 2, 3, 4]);
  });

  test.each<[string, Claims, RegExp]>([
    ['a storage shorter than declared', { elements: 5 }, /storage 0 should have 20 bytes and has 16/],
    ['a storage longer than declared', { elements: 3 }, /should have 12 bytes and has 16/],
    ['a storage that is not there', { key: '1' }, /storage 1 should have 16 bytes and has none/],
    ['a shape beyond the storage', { shape: [5] }, /reaches beyond/],
    ['an offset beyond the storage', { offset: 1 }, /reaches beyond/],
    ['a stride beyond the storage', { shape: [2], stride: [4] }, /reaches beyond/],
    ['a size that overflows', { shape: [2 ** 50, 2 ** 50], stride: [1, 1] }, /reaches beyond/],
    ['a repeated element, two to the forty times', { shape: [2 ** 40], stride: [0] }, /repeats its storage/],
    ['a negative size', { shape: [-1] }, /whole number/],
    ['a negative stride', { stride: [-1] }, /whole number/],
    ['a stride missing', { shape: [2, 2] }, /different lengths/],
    ['a key that is a path', { key: '../../etc/passwd' }, /no record name/],
    ['a third byte order', { byteOrder: 'middle' }, /byte order/],
  ])('%s', async (_, claims, message) => {
    const error = await failure(await claiming(claims));
    expect(error.code).toBe('bad-file');
    expect(error.message).toMatch(message);
  });

  test('an element may repeat (stride 0), as expand() makes it', async () => {
    const data = new Uint8Array(Float32Array.of(1, 2, 3, 4).buffer);
    const file = await openTorchFile(
      bytesSource('x', await claiming({ data, shape: [2, 3], stride: [1, 0], offset: 2 })),
    );
    expect([...(await floats(file, file.value))]).toEqual([3, 3, 3, 4, 4, 4]);
  });

  test.each<DType>(['float32', 'float64', 'int16', 'complex64'])('big-endian %s is swapped', async (dtype) => {
    const little = Uint8Array.from({ length: 4 * dtypeBytes(dtype) }, (_, i) => i);
    const data = little.slice();
    swapBytes(data, dtype);
    const file = await openTorchFile(bytesSource('x', await claiming({ data, dtype, byteOrder: 'big' })));
    expect(await readTensor(file, tensor(file.value))).toEqual(little);
  });
});

describe('writing', () => {
  const SHAPES = [[], [0, 3], [1], [7], [3, 5], [2, 3, 4]];
  const contents = (dtype: DType, shape: readonly number[]): Uint8Array =>
    Uint8Array.from({ length: elementCount(shape) * dtypeBytes(dtype) }, (_, i) => (i * 31 + shape.length) & 0xff);

  async function written(value: PyValue): Promise<Uint8Array<ArrayBuffer>> {
    const sink = memorySink();
    const bytes = await writeTorchFile(value, sink);
    expect(sink.bytes().length).toBe(bytes);
    expect(torchFileBytes(value)).toBe(bytes);
    return sink.bytes();
  }

  test('every dtype and shape comes back, 126 storages in one file, and the size was known ahead', async () => {
    const tree = new Map<PyValue, PyValue>();
    for (const dtype of Object.keys(DTYPES) as DType[]) {
      for (const shape of SHAPES)
        tree.set(
          `${dtype} ${shape}`,
          tensorToWrite(dtype, shape, () => [contents(dtype, shape)]),
        );
    }
    expect(tree.size).toBeGreaterThan(100);
    const file = await openTorchFile(bytesSource('x', await written(tree)));
    for (const [name, value] of dict(file.value)) {
      const { dtype, shape } = tensor(value);
      expect(`${dtype} ${shape}`).toBe(name);
      expect(await readTensor(file, tensor(value))).toEqual(contents(dtype, shape));
    }
  });

  test('tensors are pulled one after the other, in order, each once, after the one before is used up', async () => {
    const events: string[] = [];
    const pulled = (name: string) =>
      tensorToWrite('uint8', [2], async function* () {
        events.push(`${name} begins`);
        yield Uint8Array.of(1);
        yield Uint8Array.of(2);
        events.push(`${name} ends`);
      });
    await written(
      new Map([
        ['b', pulled('b')],
        ['a', pulled('a')],
      ]),
    );
    expect(events).toEqual(['b begins', 'b ends', 'a begins', 'a ends']);
  });

  test('a tensor used twice is one storage', async () => {
    const shared = tensorToWrite('uint8', [2], () => [Uint8Array.of(5, 6)]);
    const bytes = await written([shared, shared]);
    const file = await openTorchFile(bytesSource('x', bytes));
    const [first, second] = file.value as TorchTensor[];
    expect(first.storage.key).toBe(second.storage.key);
    expect([...(await readTensor(file, second))]).toEqual([5, 6]);
  });

  test('a tensor of another length than its shape is an error', async () => {
    const short = tensorToWrite('float32', [2], () => [new Uint8Array(4)]);
    await expect(writeTorchFile([short], memorySink())).rejects.toMatchObject({ code: 'internal' });
  });

  test('the same tree makes the same bytes', async () => {
    const make = () => written(new Map([['a', tensorToWrite('int8', [3], () => [Uint8Array.of(1, 2, 3)])]]));
    expect(await make()).toEqual(await make());
  });

  test('9.50: only what the restricted loader of torch reads: protocol 2, known records, no absolute place', async () => {
    const bytes = await written(new Map([['a', tensorToWrite('int8', [1], () => [Uint8Array.of(1)])]]));
    const archive = await openZip(bytesSource('x', bytes));
    expect([...archive.entries.keys()]).toEqual([
      'archive/data.pkl',
      'archive/byteorder',
      'archive/data/0',
      'archive/version',
    ]);
    const pickle = await readZipEntry(archive, archive.entries.get('archive/data.pkl')!, 1000);
    expect([...pickle.subarray(0, 2)]).toEqual([0x80, 2]);
  });
});
