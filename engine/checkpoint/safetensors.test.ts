import { readFileSync } from 'node:fs';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { StudioError } from '../errors.ts';
import { bytesSource } from './byte-source.ts';
import { DTYPES, type DType, dtypeBytes, elementCount } from './dtype.ts';
import { memorySink } from './fixtures/memory-sink.ts';
import { duplicateJsonKey } from './json-keys.ts';
import { openSafetensors, type SafetensorsToWrite, safetensorsBytes, writeSafetensors } from './safetensors.ts';

/** A file with this header text and so many bytes of data; the length field can lie. */
function fileOf(header: string, dataBytes: number, headerBytes?: number): Uint8Array {
  const json = new TextEncoder().encode(header);
  const out = new Uint8Array(8 + json.length + dataBytes);
  new DataView(out.buffer).setBigUint64(0, BigInt(headerBytes ?? json.length), true);
  out.set(json, 8);
  return out;
}

async function failure(bytes: Uint8Array): Promise<StudioError> {
  const error = await openSafetensors(bytesSource('test.safetensors', bytes)).then(
    () => new Error('it was opened'),
    (reason) => reason,
  );
  if (!(error instanceof StudioError)) throw error;
  return error;
}

const f32 = (begin: number, end: number, shape = [(end - begin) / 4]): object => ({
  dtype: 'F32',
  shape,
  data_offsets: [begin, end],
});

test('a file that the safetensors package wrote', async () => {
  const name = 'gpt2/hf/model.safetensors';
  const file = await openSafetensors(bytesSource(name, readFileSync(new URL(`../testdata/${name}`, import.meta.url))));
  expect(file.metadata).toEqual({ format: 'pt' });
  expect(file.tensors.get('transformer.wte.weight')).toMatchObject({ dtype: 'float32', shape: [101, 32] });
});

test('what is written comes back, wider types first, aligned, of the size known ahead', async () => {
  const dtypes = (Object.keys(DTYPES) as DType[]).filter((dtype) => DTYPES[dtype].safetensors !== null);
  const tensor = fc.record({
    name: fc.string({ unit: 'grapheme', maxLength: 12 }).filter((name) => name !== '__metadata__'),
    dtype: fc.constantFrom(...dtypes),
    shape: fc.array(fc.integer({ min: 0, max: 4 }), { maxLength: 3 }),
  });
  const contents = (t: { dtype: DType; shape: number[] }) =>
    Uint8Array.from({ length: elementCount(t.shape) * dtypeBytes(t.dtype) }, (_, i) => (i * 7 + t.shape.length) & 0xff);
  await fc.assert(
    fc.asyncProperty(fc.uniqueArray(tensor, { selector: (t) => t.name, maxLength: 8 }), async (list) => {
      const tensors: SafetensorsToWrite[] = list.map((t) => ({ ...t, chunks: () => [contents(t)] }));
      const sink = memorySink();
      const metadata = { config: '{"a":1}' };
      const bytes = await writeSafetensors(tensors, sink, metadata);
      expect(sink.bytes().length).toBe(bytes);
      expect(safetensorsBytes(tensors, metadata)).toBe(bytes);
      const file = await openSafetensors(bytesSource('x', sink.bytes()));
      expect(file.metadata).toEqual(metadata);
      expect(file.tensors.size).toBe(list.length);
      for (const t of list) {
        const found = file.tensors.get(t.name)!;
        expect(found).toMatchObject({ dtype: t.dtype, shape: t.shape });
        expect(found.offset % dtypeBytes(t.dtype)).toBe(0);
        expect(await file.source.read(found.offset, found.bytes)).toEqual(contents(t));
      }
    }),
    { numRuns: 150, seed: 5 },
  );
});

test('what the format cannot hold is said before a byte is written', () => {
  const tensor = (name: string, dtype: DType): SafetensorsToWrite => ({ name, dtype, shape: [1], chunks: () => [] });
  expect(() => safetensorsBytes([tensor('z', 'complex128')])).toThrow(/z is complex128/);
  expect(() => safetensorsBytes([tensor('a', 'int8'), tensor('a', 'int8')])).toThrow(/twice/);
  expect(() => safetensorsBytes([tensor('__metadata__', 'int8')])).toThrow(/__metadata__/);
});

test('a tensor of another length than announced is an error', async () => {
  const short = { name: 'a', dtype: 'float32' as const, shape: [2], chunks: () => [new Uint8Array(4)] };
  await expect(writeSafetensors([short], memorySink())).rejects.toMatchObject({ code: 'internal' });
});

describe('rules of the format', () => {
  const two = JSON.stringify({ a: f32(0, 8), b: f32(8, 12) });

  test('spaces after the header, tensors in any order, empty tensors', async () => {
    const header = `${JSON.stringify({ b: f32(8, 12), e: f32(8, 8, [0, 5]), a: f32(0, 8) })}   `;
    const file = await openSafetensors(bytesSource('x', fileOf(header, 12)));
    expect([...file.tensors.keys()]).toEqual(['b', 'e', 'a']);
  });

  test.each<[string, Uint8Array, RegExp]>([
    ['nothing', new Uint8Array(0), /does not begin with a header/],
    ['a header longer than the file', fileOf(two, 12, 10_000), /does not begin with a header/],
    ['a header of 2^63 bytes', fileOf(two, 12, 2 ** 62), /does not begin with a header/],
    ['a header that is a list', fileOf('[1]', 0), /does not begin with a header/],
    ['a header cut off', fileOf('{"a":', 0), /not valid JSON/],
    ['a header that is not UTF-8', fileOf('{"a":1}', 0).map((byte) => (byte === 0x61 ? 0xff : byte)), /not valid JSON/],
    [
      'a name twice',
      fileOf(`{"a":${JSON.stringify(f32(0, 4))},"a":${JSON.stringify(f32(0, 4))}}`, 4),
      /"a" is in its header twice/,
    ],
    [
      'the same name with an escape',
      fileOf(`{"a":${JSON.stringify(f32(0, 4))},"\\u0061":${JSON.stringify(f32(0, 4))}}`, 4),
      /twice/,
    ],
    ['a hole', fileOf(JSON.stringify({ a: f32(0, 4), b: f32(8, 12) }), 12), /b does not begin where/],
    ['an overlap', fileOf(JSON.stringify({ a: f32(0, 8), b: f32(4, 12) }), 12), /b does not begin where/],
    ['a hole at the start', fileOf(JSON.stringify({ a: f32(4, 8) }), 8), /a does not begin where/],
    ['bytes after the last', fileOf(two, 13), /end at byte/],
    ['a range beyond the end', fileOf(two, 11), /b reaches beyond the end/],
    [
      'a range of another length than the shape',
      fileOf(JSON.stringify({ a: f32(0, 4, [2]) }), 4),
      /a of 8 bytes has a range of 4/,
    ],
    ['a range backwards', fileOf(JSON.stringify({ a: f32(8, 4) }), 8), /whole numbers|has a range/],
    ['a shape that overflows', fileOf(JSON.stringify({ a: f32(0, 4, [2 ** 40, 2 ** 40]) }), 4), /has a range of 4/],
    ['an unknown dtype', fileOf(JSON.stringify({ a: { ...f32(0, 4), dtype: 'F4' } }), 4), /dtype "F4"/],
    ['a tensor that is null', fileOf('{"a":null}', 0), /dtype undefined/],
    ['metadata that is no text', fileOf('{"__metadata__":{"a":1}}', 0), /__metadata__/],
  ])('%s', async (_, bytes, message) => {
    const error = await failure(bytes);
    expect(error.code).toBe('bad-file');
    expect(error.message).toMatch(message);
  });

  test('at most 64 dimensions', async () => {
    const header = (dimensions: number) => JSON.stringify({ a: f32(0, 4, new Array<number>(dimensions).fill(1)) });
    expect((await failure(fileOf(header(65), 4))).message).toMatch(/tensor a has more than 64 dimensions/);
    const file = await openSafetensors(bytesSource('x', fileOf(header(64), 4)));
    expect(file.tensors.get('a')?.shape).toHaveLength(64);
  });

  test('a million brackets', async () => {
    expect((await failure(fileOf(`{"a":${'['.repeat(1_000_000)}`, 0))).code).toBe('bad-file');
  });
});

test('duplicate keys are found at any depth, and only there', () => {
  expect(duplicateJsonKey('{"a":{"b":1,"b":2}}')).toBe('b');
  expect(duplicateJsonKey('{"a":["a","a"],"b":{"a":"a"},"c":"a,\\"a\\":"}')).toBeUndefined();
  expect(duplicateJsonKey('{"a":[{"x":1},{"x":2}]}')).toBeUndefined();
});
