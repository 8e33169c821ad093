import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { bytesSource } from './byte-source.ts';
import { memorySink } from './fixtures/memory-sink.ts';
import { openCheckpoint } from './open-checkpoint.ts';
import type { PyValue } from './python-value.ts';
import { writeSafetensors } from './safetensors.ts';
import { readParameter, type StoredCheckpoint } from './stored-checkpoint.ts';
import { tensorToWrite, writeTorchFile } from './torch-file-writer.ts';

const testdata = (name: string) => readFileSync(new URL(`../testdata/${name}`, import.meta.url));
const floats = (...values: number[]) =>
  tensorToWrite('float32', [values.length], () => [new Uint8Array(Float32Array.from(values).buffer)]);

async function saved(value: PyValue, expectedNames?: string[]): Promise<StoredCheckpoint> {
  const sink = memorySink();
  await writeTorchFile(value, sink);
  return openCheckpoint({ file: bytesSource('some.ckpt', sink.bytes()) }, { expectedNames });
}

describe('the format is told by content, under a name that says nothing', () => {
  test.each([
    ['init.safetensors', 'safetensors'],
    ['init.pt', 'full'],
    ['fabric_single_step5.ckpt', 'full'],
    ['fabric_fsdp_full_ws1', 'full'],
  ])('%s', async (name, kind) => {
    const file = bytesSource('upload', testdata(`demo-transformer/${name}`));
    const { kind: found, model } = await openCheckpoint({ file });
    expect(found).toBe(kind);
    expect(model.size).toBe(67);
    expect(model.get('decoder.weight')).toMatchObject({ shape: [97, 32], dtype: 'float32' });
  });

  test('a file from before torch 1.6, and anything else', async () => {
    for (const content of ['', 'hello world, this is text', '\x89PNG']) {
      const file = bytesSource('odd.bin', new TextEncoder().encode(content));
      await expect(openCheckpoint({ file })).rejects.toMatchObject({ code: 'bad-file' });
    }
    const { kind, model } = await openCheckpoint({ file: bytesSource('old.pt', testdata('zoo_legacy.pt')) });
    expect([kind, ...model.keys()]).toEqual(['full', 'a', 'b']);
  });
});

describe('the state dict is told by its shape', () => {
  const state = () => new Map<PyValue, PyValue>([['w', floats(1, 2)]]);
  const optimizer = () =>
    new Map<PyValue, PyValue>([
      ['state', new Map([[0, new Map([['exp_avg', floats(0, 0)]])]])],
      ['param_groups', [new Map([['lr', 0.1]])]],
    ]);

  test.each<[string, () => PyValue]>([
    ['at the top', state],
    ['under any key', () => new Map([['anything', state()]])],
    ['deeper', () => new Map([['a', new Map([['b', state()]])]])],
    [
      'beside an optimizer of any name',
      () =>
        new Map([
          ['zz', optimizer()],
          ['net', state()],
        ] as [string, PyValue][]),
    ],
  ])('%s', async (_, value) => {
    const checkpoint = await saved(value());
    expect([...checkpoint.model.keys()]).toEqual(['w']);
    expect(await readParameter(checkpoint, 'w', 0, 2)).toEqual(Float32Array.of(1, 2));
  });

  test('of several, the one that has the model’s names', async () => {
    const several = () =>
      new Map<PyValue, PyValue>([
        ['ema', new Map([['v', floats(3)]])],
        ['net', state()],
      ]);
    await expect(saved(several())).rejects.toThrow(/several state dicts \(ema, net\)/);
    expect([...(await saved(several(), ['w'])).model.keys()]).toEqual(['w']);
  });

  test('none', async () => {
    await expect(saved([floats(1)])).rejects.toThrow(/no state dict/);
    await expect(saved(new Map([['optimizer', optimizer()]]))).rejects.toThrow(/no state dict/);
  });

  test('names stand as they are in the file', async () => {
    const { model } = await saved(new Map([['module._forward_module.w', floats(1)]]));
    expect([...model.keys()]).toEqual(['module._forward_module.w']);
  });
});

test('half, bfloat16 and double become float32', async () => {
  const sink = memorySink();
  const bytes = (view: ArrayBufferView<ArrayBuffer>) => () => [new Uint8Array(view.buffer)];
  await writeSafetensors(
    [
      { name: 'half', dtype: 'float16', shape: [2], chunks: bytes(Uint16Array.of(0x3c00, 0xc000)) },
      { name: 'brain', dtype: 'bfloat16', shape: [2], chunks: bytes(Uint16Array.of(0x3f80, 0xc000)) },
      { name: 'double', dtype: 'float64', shape: [2], chunks: bytes(Float64Array.of(1, -2)) },
      { name: 'steps', dtype: 'int64', shape: [1], chunks: bytes(BigInt64Array.of(1n)) },
    ],
    sink,
  );
  const mixed = await openCheckpoint({ file: bytesSource('mixed', sink.bytes()) });
  for (const name of ['half', 'brain', 'double'])
    expect(await readParameter(mixed, name, 0, 2)).toEqual(Float32Array.of(1, -2));
  expect(await readParameter(mixed, 'half', 1, 1)).toEqual(Float32Array.of(-2));
  await expect(readParameter(mixed, 'steps', 0, 1)).rejects.toMatchObject({ code: 'bad-data' });
  await expect(readParameter(mixed, 'nothing', 0, 1)).rejects.toThrow(/no parameter nothing/);
});
