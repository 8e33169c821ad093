import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { StudioError } from '../errors.ts';
import { bytesSource } from './byte-source.ts';
import { openDcpFolder } from './dcp-folder.ts';
import { type DcpChunk, type DcpMetadata, METADATA_FILE, readDcpMetadata } from './dcp-metadata.ts';
import { writeDcpMetadata } from './dcp-metadata-writer.ts';
import { memorySink } from './fixtures/memory-sink.ts';
import { OPCODE } from './pickle-opcodes.ts';
import { PickleWriter } from './pickle-writer.ts';
import { type PyObject, type PyValue, tuple } from './python-value.ts';
import { tensorToWrite, writeTorchFile } from './torch-file-writer.ts';

const real = (name: string) =>
  new Uint8Array(readFileSync(new URL(`../testdata/demo-transformer/${name}/.metadata`, import.meta.url)));

const SAMPLE: Omit<DcpMetadata, 'checkpointId'> = {
  items: new Map([
    [
      'model.w',
      {
        kind: 'tensor' as const,
        dtype: 'bfloat16' as const,
        shape: [5, 2],
        chunks: [
          { offsets: [0, 0], sizes: [3, 2] },
          { offsets: [3, 0], sizes: [2, 2] },
        ],
      },
    ],
    ['opt.param_groups.0.lr', { kind: 'bytes' as const }],
  ]),
  paths: new Map([
    ['model.w', ['model', 'w']],
    ['opt.param_groups.0.lr', ['opt', 'param_groups', 0, 'lr']],
  ]),
  places: [
    { name: 'model.w', offsets: [0, 0], file: '__0_0.distcp', start: 0, bytes: 700 },
    { name: 'model.w', offsets: [3, 0], file: '__1_0.distcp', start: 2 ** 33, bytes: 700 },
    { name: 'opt.param_groups.0.lr', offsets: null, file: '__0_0.distcp', start: 700, bytes: 600 },
  ],
};

/** SAMPLE, writable. */
interface Draft {
  items: Map<string, { shape: number[]; chunks: { offsets: number[]; sizes: number[] }[] }>;
  paths: Map<string, string[]>;
  places: { file: string; start: number; bytes: number }[];
}
type Change = (copy: Draft) => unknown;

/** SAMPLE with one field changed somewhere, written and read again. */
function reread(change: Change): DcpMetadata {
  const copy = structuredClone(SAMPLE);
  change(copy as unknown as Draft);
  return readDcpMetadata('run/.metadata', writeDcpMetadata(copy));
}

const refusal = (change: Change): string => {
  try {
    reread(change);
  } catch (error) {
    if (error instanceof StudioError && error.code === 'bad-file') return error.message;
    throw error;
  }
  return 'accepted';
};

describe('reading', () => {
  test.each(['dcp_fsdp1_ws2', 'dcp_fsdp2_ws2', 'fabric_fsdp_sharded_ws1'])('%s', (name) => {
    const { items, paths, places, checkpointId } = readDcpMetadata(METADATA_FILE, real(name));
    expect(items.size).toBe(280);
    expect(paths.size).toBe(280);
    expect(places.length).toBe(name.endsWith('ws2') ? 481 : 280);
    expect(checkpointId).toBe(`/tmp/ref/a/${name}`);
    expect(items.get('model.decoder.bias')).toMatchObject({ dtype: 'float32', shape: [97] });
  });

  test('what is written comes back, in protocol 2, without a path of Python’s', () => {
    const bytes = writeDcpMetadata(SAMPLE);
    expect(readDcpMetadata(METADATA_FILE, bytes)).toEqual({ ...SAMPLE, checkpointId: null });
    expect([...bytes.subarray(0, 2)]).toEqual([OPCODE.PROTO, 2]);
    const text = new TextDecoder('latin1').decode(bytes);
    expect(text).not.toContain('PosixPath');
    // torch 2.2 and 2.3 have neither of these.
    expect(text).not.toContain('StorageMeta\n');
    expect(text).not.toContain('_MEM_FORMAT_ENCODING');
  });

  test('torch up to 2.3 keeps TensorProperties elsewhere and whole containers as one item', () => {
    const old = oldMetadata();
    const { items, paths, places } = readDcpMetadata(METADATA_FILE, old);
    expect(items.get('w')).toEqual({
      kind: 'tensor',
      dtype: 'float16',
      shape: [2],
      chunks: [{ offsets: [0], sizes: [2] }],
    });
    expect(paths.get('w')).toEqual(['w']);
    expect(places).toEqual([{ name: 'w', offsets: [0], file: '__0_0.distcp', start: 0, bytes: 9 }]);
  });
});

describe('refused', () => {
  test.each(['../x', '/etc/passwd', 'a/b', 'a\\b', '..', '.', 'C:x', 'a\0b'])('the file name %j', (file) => {
    expect(refusal((copy) => (copy.places[0].file = file))).toMatch(/leaves the folder/);
  });

  test('chunks outside their tensor, shapes and places that are none', () => {
    expect(refusal((copy) => (copy.items.get('model.w')!.chunks[1].sizes[0] = 3))).toMatch(/model\.w .*not inside it/);
    expect(refusal((copy) => copy.items.get('model.w')!.chunks[1].sizes.push(1))).toMatch(/model\.w .*not inside it/);
    expect(refusal((copy) => (copy.items.get('model.w')!.shape[0] = 2 ** 53))).toMatch(/torch\.Size|impossible shape/);
    expect(refusal((copy) => (copy.items.get('model.w')!.shape[0] = -1))).toMatch(/wrong arguments/);
    expect(refusal((copy) => (copy.places[0].start = -1))).toMatch(/place of model\.w is no whole number/);
    expect(refusal((copy) => (copy.places[0].bytes = 0.5))).toMatch(/place of model\.w is no whole number/);
    expect(refusal((copy) => copy.paths.set('model.w', []))).toMatch(/path of model\.w/);
  });

  test.each([
    ['posix', 'system'],
    ['builtins', 'eval'],
    ['torch', 'load'],
    ['torch', 'FloatStorage'],
    ['torch.distributed.checkpoint.metadata', '__builtins__'],
    ['pathlib', 'Path'],
  ])('the global %s.%s, by name', (module, name) => {
    const writer = new PickleWriter();
    writer.reduce(module, name, ['echo']);
    expect(() => readDcpMetadata('run/.metadata', writer.finish())).toThrow(
      expect.objectContaining({
        code: 'refused-global',
        details: expect.objectContaining({ global: `${module}.${name}` }),
      }),
    );
  });

  test('something else than metadata', () => {
    const writer = new PickleWriter();
    writer.value(new Map([['state_dict_metadata', new Map()]]));
    expect(() => readDcpMetadata('run/.metadata', writer.finish())).toThrow(/no Metadata/);
  });
});

describe('chunks of any shape', () => {
  const SHAPE = [4, 6];
  /** One file per chunk, elements numbered through the tensor. */
  async function folder(chunks: readonly DcpChunk[]) {
    const files = new Map<string, ReturnType<typeof bytesSource>>();
    const places = [];
    for (const [i, { offsets, sizes }] of chunks.entries()) {
      const values = [];
      for (let row = 0; row < sizes[0]; row++) {
        for (let column = 0; column < sizes[1]; column++)
          values.push((offsets[0] + row) * SHAPE[1] + offsets[1] + column);
      }
      const sink = memorySink();
      const bytes = new Uint8Array(Float32Array.from(values).buffer);
      await writeTorchFile(
        tensorToWrite('float32', sizes, () => [bytes]),
        sink,
      );
      files.set(`__${i}_0.distcp`, bytesSource('x', sink.bytes()));
      places.push({ name: 'w', offsets, file: `__${i}_0.distcp`, start: 0, bytes: sink.bytes().length });
    }
    const items = new Map([['w', { kind: 'tensor' as const, dtype: 'float32' as const, shape: SHAPE, chunks }]]);
    const metadata = writeDcpMetadata({ items, paths: new Map([['w', ['w']]]), places });
    return openDcpFolder('run', files.set(METADATA_FILE, bytesSource('m', metadata)));
  }
  const box = (row: number, column: number, rows: number, columns: number): DcpChunk => ({
    offsets: [row, column],
    sizes: [rows, columns],
  });

  test('a grid, columns, odd boxes: every range of elements is right', async () => {
    for (const chunks of [
      [box(0, 0, 2, 3), box(0, 3, 2, 3), box(2, 0, 2, 3), box(2, 3, 2, 3)],
      [box(0, 4, 4, 2), box(0, 0, 4, 4)],
      [box(0, 0, 3, 2), box(0, 2, 1, 4), box(1, 2, 3, 4), box(3, 0, 1, 2), box(2, 2, 0, 4)],
    ]) {
      const opened = await folder(chunks);
      for (let first = 0; first < 24; first++) {
        for (let count = 0; first + count <= 24; count++) {
          const data = new Float32Array((await opened.readElements('w', first, count)).buffer);
          expect(data).toEqual(Float32Array.from({ length: count }, (_, i) => first + i));
        }
      }
    }
  });

  test.each([
    [[box(0, 0, 1, 6), box(2, 0, 2, 6)], 'rows 1 to 1 of 4 are in none'],
    [[box(0, 0, 3, 6)], 'rows 3 to 3 of 4 are in none'],
    [[], 'rows 0 to 3 of 4 are in none'],
    [[box(0, 0, 3, 6), box(2, 0, 2, 6)], 'rows 2 to 2 are in two'],
    [[box(0, 0, 4, 3), box(0, 3, 3, 3)], '3 of its 24 elements are in none'],
    [[box(0, 0, 4, 4), box(0, 3, 4, 3)], 'its chunks at [0,0] and [0,3] overlap'],
  ])('a tensor that is not covered once is refused by name: %#', async (chunks, message) => {
    await expect((await folder(chunks)).readElements('w', 0, 1)).rejects.toThrow(`w: ${message}`);
  });
});

interface Made extends PyObject {
  readonly kind: 'global' | 'call' | 'instance';
  readonly module: string;
  readonly name: string;
  readonly state?: PyValue;
  readonly args?: readonly PyValue[];
}

/** Written by hand as torch 2.2 does: no planner data, properties of the sharded tensor package, an enum by its value. */
function oldMetadata(): Uint8Array {
  const writer = new PickleWriter((value, pickle) => {
    const { kind, module, name, args = [], state = null } = value as Made;
    if (kind === 'call') return pickle.reduce(module, name, args);
    pickle.global(module, name);
    if (kind === 'global') return;
    pickle.op(OPCODE.EMPTY_TUPLE, OPCODE.NEWOBJ);
    pickle.value(state);
    pickle.op(OPCODE.BUILD);
  });
  const metadata = 'torch.distributed.checkpoint.metadata';
  const old = 'torch.distributed._shard.sharded_tensor.metadata';
  const filesystem = 'torch.distributed.checkpoint.filesystem';
  const made = (module: string, name: string, state: PyValue): Made => ({ kind: 'instance', module, name, state });
  const call = (module: string, name: string, ...args: PyValue[]): Made => ({ kind: 'call', module, name, args });
  const size = (...sizes: number[]) => call('torch', 'Size', tuple(...sizes));
  const fields = (state: Record<string, PyValue>) => new Map<PyValue, PyValue>(Object.entries(state));
  const float16: Made = { kind: 'global', module: 'torch', name: 'float16' };
  const layout = call('torch.serialization', '_get_layout', 'torch.strided');
  const properties = tuple(float16, layout, false, call(old, 'MEM_FORMAT_ENCODING', 0), false);
  const chunk = made(metadata, 'ChunkStorageMetadata', fields({ offsets: size(0), sizes: size(2) }));
  const tensor = fields({ properties: made(old, 'TensorProperties', properties), size: size(2), chunks: [chunk] });
  const index = made(metadata, 'MetadataIndex', fields({ fqn: 'w', offset: size(0), index: null }));
  const info = made(filesystem, '_StorageInfo', fields({ relative_path: '__0_0.distcp', offset: 0, length: 9 }));
  const whole = {
    state_dict_metadata: fields({ w: made(metadata, 'TensorStorageMetadata', tensor) }),
    planner_data: null,
    storage_data: new Map([[index, info]]),
  };
  writer.value(made(metadata, 'Metadata', fields(whole)));
  return writer.finish();
}
