import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { StudioError } from '../errors.ts';
import { type ByteSource, bytesSource, memorySink } from './byte-source.ts';
import type { PyValue } from './python-value.ts';
import { writeSafetensors } from './safetensors.ts';
import { tensorToWrite, writeTorchFile } from './torch-file-writer.ts';
import { openWeights, type WeightsFile } from './weights-file.ts';

/** A source that counts what is read, under a name that says nothing. */
function counting(bytes: Uint8Array): ByteSource & { readBytes: number } {
  const inner = bytesSource('upload', bytes);
  const source = {
    ...inner,
    readBytes: 0,
    read(offset: number, length: number) {
      source.readBytes += length;
      return inner.read(offset, length);
    },
  };
  return source;
}

const testdata = (name: string) => readFileSync(new URL(`../testdata/demo-transformer/${name}`, import.meta.url));
const floats = (...values: number[]) =>
  tensorToWrite('float32', [values.length], () => [new Uint8Array(Float32Array.from(values).buffer)]);

async function torchWeights(value: PyValue, expectedNames?: string[]): Promise<WeightsFile> {
  const sink = memorySink();
  await writeTorchFile(value, sink);
  return openWeights(bytesSource('some.ckpt', sink.bytes()), { expectedNames });
}

describe('the format is told by content', () => {
  test.each([
    ['init.safetensors', 'safetensors', []],
    ['init.pt', 'torch', []],
    ['fabric_single_step5.ckpt', 'torch', ['model']],
    ['fabric_fsdp_full_ws1', 'torch', ['model']],
  ])('%s', async (name, format, path) => {
    const weights = await openWeights(counting(testdata(name)));
    expect(weights.format).toBe(format);
    expect(weights.path).toEqual(path);
    expect(weights.names).toHaveLength(67);
    expect(weights.shape('decoder.weight')).toEqual([97, 32]);
    expect(weights.dtype('decoder.weight')).toBe('float32');
  });

  test('init.pt and init.safetensors are the same weights, whole and by rows', async () => {
    const [torch, safetensors] = await Promise.all(
      ['init.pt', 'init.safetensors'].map((n) => openWeights(counting(testdata(n)))),
    );
    for (const name of torch.names) {
      const whole = await torch.readFloat32(name);
      expect(await safetensors.readFloat32(name)).toEqual(whole);
      const [rows, ...rest] = torch.shape(name);
      const rowElements = rest.reduce((product, size) => product * size, 1);
      const middle = Math.floor(rows / 3);
      const part = whole.subarray(middle * rowElements, rows * rowElements);
      expect(await torch.readRows(name, middle, rows - middle)).toEqual(part);
      expect(await safetensors.readRows(name, middle, rows - middle)).toEqual(part);
    }
  });

  test.each(['init.pt', 'init.safetensors'])('%s: a rank reads little more than its rows', async (name) => {
    const source = counting(testdata(name));
    const weights = await openWeights(source);
    const before = source.readBytes;
    await weights.readRows('embedding.weight', 10, 3);
    expect(source.readBytes - before).toBeLessThan(3 * 32 * 4 + 200);
  });

  test('rows outside are refused', async () => {
    for (const name of ['init.pt', 'init.safetensors']) {
      const weights = await openWeights(counting(testdata(name)));
      await expect(async () => weights.readRows('embedding.weight', 96, 2)).rejects.toThrow(/96 to 98/);
    }
  });

  test('a file from before torch 1.6, and anything else', async () => {
    for (const content of ['', 'hello world, this is text', '\x89PNG']) {
      const source = bytesSource('odd.bin', new TextEncoder().encode(content));
      await expect(openWeights(source)).rejects.toMatchObject({ code: 'bad-file' });
    }
    const legacy = readFileSync(new URL('../testdata/zoo_legacy.pt', import.meta.url));
    const weights = await openWeights(bytesSource('old.pt', legacy));
    expect([weights.format, weights.path, weights.names]).toEqual(['torch', ['od'], ['a', 'b']]);
  });
});

describe('the state dict is told by its shape', () => {
  const state = () => new Map<PyValue, PyValue>([['w', floats(1, 2)]]);
  const optimizer = () =>
    new Map<PyValue, PyValue>([
      ['state', new Map([[0, new Map([['exp_avg', floats(0, 0)]])]])],
      ['param_groups', [new Map([['lr', 0.1]])]],
    ]);

  test.each<[string, () => PyValue, string[]]>([
    ['at the top', state, []],
    ['under any key', () => new Map([['anything', state()]]), ['anything']],
    ['deeper', () => new Map([['a', new Map([['b', state()]])]]), ['a', 'b']],
    [
      'beside an optimizer of any name',
      () =>
        new Map([
          ['zz', optimizer()],
          ['net', state()],
        ] as [string, PyValue][]),
      ['net'],
    ],
  ])('%s', async (_, value, path) => {
    const weights = await torchWeights(value());
    expect(weights.path).toEqual(path);
    expect(await weights.readFloat32('w')).toEqual(Float32Array.of(1, 2));
  });

  test('of several, the one that has the model’s names', async () => {
    const several = () =>
      new Map<PyValue, PyValue>([
        ['ema', new Map([['v', floats(3)]])],
        ['net', state()],
      ]);
    await expect(torchWeights(several())).rejects.toThrow(/several state dicts \(ema, net\)/);
    expect((await torchWeights(several(), ['w'])).path).toEqual(['net']);
  });

  test('none', async () => {
    await expect(torchWeights([floats(1)])).rejects.toThrow(/no state dict/);
    await expect(torchWeights(new Map([['optimizer', optimizer()]]))).rejects.toThrow(/no state dict/);
  });

  test('names stand as they are in the file', async () => {
    const weights = await torchWeights(new Map([['module._forward_module.w', floats(1)]]));
    expect(weights.names).toEqual(['module._forward_module.w']);
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
  const weights = await openWeights(bytesSource('mixed', sink.bytes()));
  for (const name of ['half', 'brain', 'double'])
    expect(await weights.readFloat32(name)).toEqual(Float32Array.of(1, -2));
  expect(await weights.readRows('half', 1, 1)).toEqual(Float32Array.of(-2));
  await expect(weights.readFloat32('steps')).rejects.toMatchObject({ code: 'bad-data' });
  await expect(weights.readFloat32('nothing')).rejects.toThrow(/no tensor nothing/);
});

test('weights of the wrong shapes: one error lists them all', async () => {
  const weights = await openWeights(bytesSource('init.pt', testdata('init.pt')));
  const expected = new Map(weights.names.map((name) => [name, weights.shape(name)]));
  weights.checkShapes(expected);
  expected.delete('decoder.bias');
  expected.set('decoder.weight', [98, 32]);
  expected.set('head.weight', [1]);
  let error: unknown;
  try {
    weights.checkShapes(expected);
  } catch (thrown) {
    error = thrown;
  }
  expect(error).toBeInstanceOf(StudioError);
  expect(error).toMatchObject({
    code: 'bad-data',
    message:
      'The weights in init.pt do not fit this model: 1 missing (head.weight); 1 unexpected (decoder.bias); ' +
      '1 of another shape (decoder.weight is [97,32] and should be [98,32]).',
    details: {
      missing: ['head.weight'],
      unexpected: ['decoder.bias'],
      wrongShapes: [{ name: 'decoder.weight', expected: [98, 32], found: [97, 32] }],
    },
  });
});
