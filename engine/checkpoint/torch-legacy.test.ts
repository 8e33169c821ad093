import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { bytesSource } from './byte-source.ts';
import { readTensor } from './fixtures/read-tensor.ts';
import { writePickle } from './fixtures/write-pickle.ts';
import { PyTuple, type PyValue } from './python-value.ts';
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

describe('the format before torch 1.6', () => {
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
