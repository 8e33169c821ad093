import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { StudioError } from '../errors.ts';
import { type ByteSource, bytesSource } from './byte-source.ts';
import { handMadeZip } from './fixtures/hand-made-zip.ts';
import { memorySink } from './fixtures/memory-sink.ts';
import { openZip, openZipEntry, readZipEntry, verifyZipEntry } from './zip-reader.ts';
import { ZipWriter, zipBytes } from './zip-writer.ts';

type Records = ReadonlyMap<string, Uint8Array>;

async function zipOf(records: Records): Promise<Uint8Array<ArrayBuffer>> {
  const sink = memorySink();
  const zip = new ZipWriter(sink);
  for (const [name, data] of records) await zip.record({ name, bytes: data.length }, [data]);
  const bytes = await zip.finish();
  expect(bytes).toBe(sink.bytes().length);
  return sink.bytes();
}

async function readAll(file: Uint8Array): Promise<Map<string, Uint8Array>> {
  const archive = await openZip(bytesSource('test.zip', file));
  const out = new Map<string, Uint8Array>();
  for (const entry of archive.entries.values()) out.set(entry.name, await readZipEntry(archive, entry, 1e9));
  return out;
}

async function failure(file: Uint8Array): Promise<StudioError> {
  const error = await readAll(file).then(
    () => new Error('it was read'),
    (reason) => reason,
  );
  if (!(error instanceof StudioError)) throw error;
  return error;
}

const text = (value: string): Uint8Array => new TextEncoder().encode(value);
const sizes = (records: Records) => [...records].map(([name, data]) => ({ name, bytes: data.length }));
const SAMPLE: Records = new Map([
  ['archive/data.pkl', text('hello')],
  ['archive/data/0', Uint8Array.from({ length: 300 }, (_, i) => i & 0xff)],
  ['archive/data/1', new Uint8Array(0)],
  ['archive/version', text('3\n')],
]);

const GiB = 1024 ** 3;
const MAX = 0xffffffff;

/** Little-endian fields: H is 2 bytes, I 4, Q 8. */
function struct(format: string, ...values: number[]): Uint8Array {
  const widths: Record<string, number> = { H: 2, I: 4, Q: 8 };
  return Buffer.concat(
    values.map((value, i) => {
      const field = new DataView(new ArrayBuffer(8));
      field.setBigUint64(0, BigInt(value), true);
      return new Uint8Array(field.buffer, 0, widths[format[i]]);
    }),
  );
}

/** A file of zeros with a few segments in it, so that sizes of many GiB cost nothing. */
function sparseSource(bytes: number, segments: readonly (readonly [offset: number, data: Uint8Array])[]): ByteSource {
  return {
    name: 'sparse.zip',
    bytes,
    async read(offset, length) {
      const out = new Uint8Array(length);
      for (const [start, data] of segments) {
        const from = Math.max(offset, start);
        const to = Math.min(offset + length, start + data.length);
        if (from < to) out.set(data.subarray(from - start, to - start), from - offset);
      }
      return out;
    },
  };
}

describe('writing', () => {
  test('records come back as they were, and the size was known ahead', async () => {
    const name = fc.string({ minLength: 1, maxLength: 30, unit: fc.constantFrom('a', 'B', '7', '.', '_', 'é', '/') });
    const records = fc
      .array(
        fc.tuple(
          name.filter((n) => !n.startsWith('/') && !n.split('/').includes('..')),
          fc.uint8Array({ maxLength: 200 }),
        ),
      )
      .map((entries) => new Map(entries));
    await fc.assert(
      fc.asyncProperty(records, async (map) => {
        const file = await zipOf(map);
        expect(zipBytes(sizes(map))).toBe(file.length);
        const back = await readAll(file);
        expect([...back.keys()]).toEqual([...map.keys()]);
        for (const [key, data] of map) expect([...back.get(key)!]).toEqual([...data]);
      }),
      { numRuns: 150, seed: 3 },
    );
  });

  test('data begins at multiples of 64', async () => {
    const file = await zipOf(SAMPLE);
    const data = SAMPLE.get('archive/data/0')!;
    const at = Buffer.from(file).indexOf(data);
    expect(at % 64).toBe(0);
  });

  test('more records than a 16-bit count holds', async () => {
    const records = new Map(Array.from({ length: 70_000 }, (_, i) => [`a/${i}`, new Uint8Array(0)]));
    const archive = await openZip(bytesSource('many.zip', await zipOf(records)));
    expect(archive.entries.size).toBe(70_000);
  });

  test('a record of another length than announced, or twice, is an error', async () => {
    const zip = () => new ZipWriter(memorySink());
    await expect(zip().record({ name: 'a', bytes: 3 }, [text('ab')])).rejects.toThrow(/announced as 3 bytes and got 2/);
    await expect(zip().record({ name: 'a', bytes: 3 }, [text('abcd')])).rejects.toThrow(
      /announced as 3 bytes and got 4/,
    );
    const twice = zip();
    await twice.record({ name: 'a', bytes: 0 }, []);
    await expect(twice.record({ name: 'a', bytes: 0 }, [])).rejects.toThrow(/twice/);
  });

  test('sizes beyond 4 GiB: 64-bit fields where they are needed', () => {
    const small = zipBytes([{ name: 'a/data/0', bytes: 1024 }]);
    const large = zipBytes([{ name: 'a/data/0', bytes: 5 * GiB }]);
    // 20 more in the directory (two sizes), 8 more in the descriptor; the local ones vanish in the padding.
    expect(large - small).toBe(5 * GiB - 1024 + 20 + 8);
  });
});

describe('reading', () => {
  test('stored and deflated records without alignment, as other programs write them', async () => {
    const long = text('all work and no play '.repeat(5000)) as Uint8Array<ArrayBuffer>;
    const back = await readAll(
      await handMadeZip([
        { name: 'x/a', data: long, deflate: true },
        { name: 'x/b', data: long },
      ]),
    );
    expect(back.get('x/a')).toEqual(long);
    expect(back.get('x/b')).toEqual(long);
  });

  test('sizes and offsets beyond 4 GiB', async () => {
    const data = text('far away');
    const name = text('a/data/0');
    const headerOffset = 6 * GiB;
    const recordBytes = 5 * GiB;
    const directoryOffset = 12 * GiB;
    const local = struct('IHHHHHIIIHH', 0x04034b50, 45, 0x0808, 0, 0, 0x21, 0, 0, 0, name.length, 0);
    const central = Buffer.concat([
      struct('IHHHHHHIII', 0x02014b50, 45, 45, 0x0808, 0, 0, 0x21, 0, MAX, MAX),
      struct('HHHHHII', name.length, 28, 0, 0, 0, 0, MAX),
      name,
      struct('HHQQQ', 1, 24, recordBytes, recordBytes, headerOffset),
    ]);
    const end = Buffer.concat([
      struct('IQHHIIQQQQ', 0x06064b50, 44, 45, 45, 0, 0, 1, 1, central.length, directoryOffset),
      struct('IIQI', 0x07064b50, 0, directoryOffset + central.length, 1),
      struct('IHHHHIIH', 0x06054b50, 0, 0, 1, 1, MAX, MAX, 0),
    ]);
    const dataOffset = headerOffset + local.length + name.length;
    const source = sparseSource(directoryOffset + central.length + end.length, [
      [headerOffset, Buffer.concat([local, name])],
      [dataOffset + 4.5 * GiB, data],
      [directoryOffset, Buffer.concat([central, end])],
    ]);
    const archive = await openZip(source);
    const entry = archive.entries.get('a/data/0')!;
    expect(entry).toMatchObject({ bytes: recordBytes, storedBytes: recordBytes, headerOffset });
    const content = await openZipEntry(archive, entry);
    expect(await content.read(4.5 * GiB, data.length)).toEqual(data);
  });

  test('a comment after the end', async () => {
    const file = await zipOf(SAMPLE);
    const comment = text('PK\x05\x06 not the end');
    const out = new Uint8Array(file.length + comment.length);
    out.set(file);
    out.set(comment, file.length);
    new DataView(out.buffer).setUint16(file.length - 2, comment.length, true);
    expect([...(await readAll(out)).keys()]).toEqual([...SAMPLE.keys()]);
  });

  test('a stored record can be read anywhere without the rest', async () => {
    const archive = await openZip(bytesSource('test.zip', await zipOf(SAMPLE)));
    const content = await openZipEntry(archive, archive.entries.get('archive/data/0')!);
    expect([...(await content.read(250, 3))]).toEqual([250, 251, 252]);
    expect(() => content.read(299, 2)).toThrow(/cut short/);
  });

  test('cut anywhere it is a typed error', async () => {
    const file = await zipOf(SAMPLE);
    for (let length = 0; length < file.length; length++) {
      expect((await failure(file.subarray(0, length))).code).toBe('bad-file');
    }
  });

  test('a flipped bit in the data is found by the CRC; one anywhere else gives a typed error or the right bytes', async () => {
    const file = await zipOf(SAMPLE);
    const at = Buffer.from(file).indexOf(SAMPLE.get('archive/data/0')!);
    for (let bit = 0; bit < file.length * 8; bit++) {
      const flipped = file.slice();
      flipped[bit >> 3] ^= 1 << (bit & 7);
      const result = await readAll(flipped).catch((error) => error);
      const inData = bit >> 3 >= at && bit >> 3 < at + 300;
      if (result instanceof Map) {
        expect(inData).toBe(false);
        for (const [name, data] of result) if (SAMPLE.has(name)) expect(data).toEqual(SAMPLE.get(name));
      } else expect((result as StudioError).code).toBe('bad-file');
    }
  });

  test('verifying reads in pieces and finds the same', async () => {
    const file = await zipOf(SAMPLE);
    const archive = await openZip(bytesSource('test.zip', file));
    for (const entry of archive.entries.values()) await verifyZipEntry(archive, entry);
    file[Buffer.from(file).indexOf(SAMPLE.get('archive/data/0')!) + 7] ^= 1;
    const flipped = await openZip(bytesSource('test.zip', file));
    await expect(verifyZipEntry(flipped, flipped.entries.get('archive/data/0')!)).rejects.toThrow(
      /archive\/data\/0 has changed/,
    );
  });

  test('a record that claims more, or less, than it unpacks to', async () => {
    const data = new Uint8Array(1000);
    const make = (claim: number) => handMadeZip([{ name: 'x/a', data, deflate: true, claim }]);
    expect((await failure(await make(2000))).message).toMatch(/1000 bytes instead of the 2000/);
    expect((await failure(await make(999))).message).toMatch(/more than the 999 bytes/);
    expect((await failure(await make(4_000_000_000))).message).toMatch(/more than the file can hold/);
  });

  test('a stored record that claims four billion bytes', async () => {
    const file = await handMadeZip([{ name: 'x/a', data: new Uint8Array(8), claim: 4_000_000_000 }]);
    expect((await failure(file)).code).toBe('bad-file');
  });

  test.each(['../evil', '/etc/passwd', 'a/../../b', 'C:/x', 'a\\b', ''])(
    'the name %j does not leave its folder',
    async (name) => {
      const file = await handMadeZip([{ name, data: new Uint8Array(1) }]);
      expect((await failure(file)).message).toMatch(/leaves its folder/);
    },
  );

  test('the same name twice', async () => {
    const data = new Uint8Array(1);
    expect(
      (
        await failure(
          await handMadeZip([
            { name: 'x', data },
            { name: 'x', data },
          ]),
        )
      ).message,
    ).toMatch(/there twice/);
  });

  test('a content larger than the caller wants', async () => {
    const archive = await openZip(bytesSource('test.zip', await zipOf(SAMPLE)));
    const entry = archive.entries.get('archive/data/0')!;
    await expect(readZipEntry(archive, entry, 299)).rejects.toMatchObject({ code: 'too-large' });
  });
});
