import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { bytesSource } from './byte-source.ts';
import { swapBytes } from './dtype.ts';
import { readTensor } from './fixtures/read-tensor.ts';
import { writePickle } from './fixtures/write-pickle.ts';
import { PyTuple, type PyValue, sequenceItems } from './python-value.ts';
import { openTorchFile, type TorchFile } from './torch-file.ts';
import { isTensor, type TorchTensor } from './torch-globals.ts';

const testdata = (name: string): Uint8Array<ArrayBuffer> =>
  new Uint8Array(readFileSync(new URL(`../testdata/${name}`, import.meta.url)));
const open = (bytes: Uint8Array, name = 'old.pt'): Promise<TorchFile> => openTorchFile(bytesSource(name, bytes));

/** The tree with each tensor replaced by its dtype, shape, layout and elements. */
async function spellOut(file: TorchFile, value: PyValue = file.value): Promise<unknown> {
  if (isTensor(value)) {
    const { dtype, shape, stride, storageOffset, requiresGrad } = value;
    return { dtype, shape, stride, storageOffset, requiresGrad, bytes: await readTensor(file, value) };
  }
  if (value instanceof Map) {
    const entries = [...value].map(async ([key, item]) => [key, await spellOut(file, item)] as const);
    return new Map(await Promise.all(entries));
  }
  if (value instanceof PyTuple) return { tuple: await Promise.all(value.items.map((item) => spellOut(file, item))) };
  if (Array.isArray(value)) return Promise.all(value.map((item) => spellOut(file, item)));
  return value;
}

/** Its machine says little_endian in byte 73; its storages, each led by its count, begin at byte 2140. */
const [TRUE, FALSE, LITTLE_ENDIAN_AT, STORAGES_AT] = [0x88, 0x89, 73, 2140];

/** zoo_legacy.pt as a machine of the other byte order writes it. */
async function zooOfBigEndian(): Promise<Uint8Array<ArrayBuffer>> {
  const bytes = testdata('zoo_legacy.pt');
  expect(bytes[LITTLE_ENDIAN_AT]).toBe(TRUE);
  const { value } = await open(bytes);
  const dtypes = new Map<string, TorchTensor>();
  const remember = (item: PyValue): void => {
    if (isTensor(item)) dtypes.set(item.storage.key, item);
    else for (const each of item instanceof Map ? item.values() : (sequenceItems(item) ?? [])) remember(each);
  };
  remember(value);
  // The list of keys in the pickle before the storages says their order; each is nine digits.
  const keys = Buffer.from(bytes.subarray(1892, STORAGES_AT)).toString('latin1').match(/\d{9}/g)!;
  expect(new Set(keys)).toEqual(new Set(dtypes.keys()));
  let at = STORAGES_AT;
  for (const { dtype, storage } of keys.map((key) => dtypes.get(key)!)) {
    bytes.subarray(at, at + 8).reverse();
    swapBytes(bytes.subarray(at + 8, at + 8 + storage.bytes), dtype);
    at += 8 + storage.bytes;
  }
  expect(at).toBe(bytes.length);
  bytes[LITTLE_ENDIAN_AT] = FALSE;
  return bytes;
}

describe('the format before torch 1.6', () => {
  test('written by a big-endian machine it holds the same', async () => {
    const [big, little] = await Promise.all([await zooOfBigEndian(), testdata('zoo_legacy.pt')].map((b) => open(b)));
    expect(await spellOut(big)).toEqual(await spellOut(little));
  });

  test('a storage that counts otherwise than the tensors of it is refused by name', async () => {
    const bytes = testdata('zoo_legacy.pt');
    bytes[STORAGES_AT]++;
    await expect(open(bytes)).rejects.toThrow(/storage 818229584 should have \d+ bytes and has \d+ elements/);
  });

  test('zoo_legacy.pt holds what zoo.pt holds', async () => {
    const [legacy, zip] = await Promise.all(['zoo_legacy.pt', 'zoo.pt'].map((name) => open(testdata(name), name)));
    const [old, young] = [await spellOut(legacy), await spellOut(zip)] as [Map<string, unknown>, Map<string, unknown>];
    const common = [...young.keys()].filter((key) => old.has(key));
    expect(common.length).toBeGreaterThan(15);
    expect(old.size).toBe(common.length);
    for (const key of common) expect(old.get(key), key).toEqual(young.get(key));
  });

  test('any range of elements, of views too', async () => {
    const file = await open(testdata('zoo_legacy.pt'));
    const view = (file.value as Map<string, TorchTensor>).get('view_T')!;
    const all = new Float32Array((await readTensor(file, view)).buffer);
    expect([...all.slice(0, 5)]).toEqual([0, 6, 12, 18, 1]);
    for (const [first, count] of [
      [0, 24],
      [3, 7],
      [5, 1],
      [24, 0],
    ]) {
      const part = new Float32Array((await file.readElements(view, first, count)).buffer);
      expect(part).toEqual(all.slice(first, first + count));
    }
    await expect(file.readElements(view, 20, 5)).rejects.toMatchObject({ code: 'internal' });
  });

  test('cut anywhere, or with something behind it, it is refused', async () => {
    const whole = testdata('zoo_legacy.pt');
    for (let length = 10; length < whole.length; length += 37) {
      await expect(open(whole.slice(0, length)), `${length}`).rejects.toMatchObject({ code: 'bad-file' });
    }
    await expect(open(new Uint8Array([...whole, 0]))).rejects.toThrow(/end at byte 2767, but it has 2768/);
  });

  test('a global outside the list is refused by name', async () => {
    const head = testdata('zoo_legacy.pt').slice(0, 137);
    const call = new TextEncoder().encode('cposix\nsystem\n.');
    await expect(open(new Uint8Array([...head, 0x80, 2, ...call]))).rejects.toMatchObject({
      code: 'refused-global',
      details: { global: 'posix.system' },
    });
  });

  test('another protocol', async () => {
    const magic = testdata('zoo_legacy.pt').slice(0, 15);
    await expect(open(new Uint8Array([...magic, ...writePickle(7)]))).rejects.toThrow(/protocol is not 1001/);
  });
});
