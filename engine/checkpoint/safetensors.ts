import { StudioError } from '../errors.ts';
import type { ByteChunks, ByteSink, ByteSource } from './byte-source.ts';
import { DTYPES, type DType, dtypeBytes, dtypeOfSafetensors, elementCount } from './dtype.ts';
import { duplicateJsonKey } from './json-keys.ts';

export interface SafetensorsTensor {
  readonly name: string;
  readonly dtype: DType;
  readonly shape: readonly number[];
  /** From the start of the file. */
  readonly offset: number;
  readonly bytes: number;
}

export interface SafetensorsFile {
  readonly source: ByteSource;
  /** In the order of the header. */
  readonly tensors: ReadonlyMap<string, SafetensorsTensor>;
  readonly metadata: Readonly<Record<string, string>>;
}

const LENGTH_BYTES = 8;
const MAX_HEADER_BYTES = 100_000_000;
/** As many as torch takes. */
const MAX_DIMENSIONS = 64;
const OPENING_BRACE = 0x7b;
const METADATA_KEY = '__metadata__';

/** Whether the first nine bytes of a file are a header length and the start of its JSON. */
export function startsAsSafetensors(start: Uint8Array, fileBytes: number): boolean {
  if (start.length <= LENGTH_BYTES || start[LENGTH_BYTES] !== OPENING_BRACE) return false;
  const headerBytes = readU64(start);
  return headerBytes <= MAX_HEADER_BYTES && LENGTH_BYTES + headerBytes <= fileBytes;
}

/**
 * Reads the header of a .safetensors file and holds every rule of the format: names once, known dtypes, every range as
 * long as its shape says, no hole, no overlap, nothing after the last. Anything else is 'bad-file', naming the tensor.
 */
export async function openSafetensors(source: ByteSource): Promise<SafetensorsFile> {
  const start = await source.read(0, Math.min(LENGTH_BYTES + 1, source.bytes));
  if (!startsAsSafetensors(start, source.bytes))
    throw bad(source, 'it does not begin with a header that fits the file');
  const headerBytes = readU64(start);
  const header = parseHeader(source, await source.read(LENGTH_BYTES, headerBytes));
  const dataOffset = LENGTH_BYTES + headerBytes;

  const tensors = new Map<string, SafetensorsTensor>();
  for (const [name, entry] of Object.entries(header)) {
    if (name !== METADATA_KEY) tensors.set(name, parseTensor(source, name, entry, dataOffset));
  }
  let end = dataOffset;
  for (const tensor of [...tensors.values()].sort((a, b) => a.offset - b.offset || a.bytes - b.bytes)) {
    if (tensor.offset !== end) throw bad(source, `tensor ${tensor.name} does not begin where the one before it ends`);
    end += tensor.bytes;
  }
  if (end !== source.bytes) throw bad(source, `its tensors end at byte ${end}, but it has ${source.bytes}`);
  return { source, tensors, metadata: parseMetadata(source, header[METADATA_KEY]) };
}

/** Elements [first, first + count) of a tensor, row-major and little-endian; no other bytes are read. */
export function readSafetensors(
  source: ByteSource,
  { name, dtype, shape, offset }: SafetensorsTensor,
  first: number,
  count: number,
): Promise<Uint8Array<ArrayBuffer>> {
  if (first < 0 || count < 0 || first + count > elementCount(shape)) {
    throw new StudioError('internal', `Elements ${first} to ${first + count} of ${name} [${shape}] were asked for.`);
  }
  return source.read(offset + first * dtypeBytes(dtype), count * dtypeBytes(dtype));
}

function bad(source: ByteSource, what: string): StudioError {
  return new StudioError('bad-file', `${source.name} is not a whole safetensors file: ${what}.`, { file: source.name });
}

function readU64(bytes: Uint8Array): number {
  return Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
}

function parseHeader(source: ByteSource, bytes: Uint8Array): Record<string, unknown> {
  try {
    const text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
    const duplicate = duplicateJsonKey(text);
    if (duplicate !== undefined) throw bad(source, `${JSON.stringify(duplicate)} is in its header twice`);
    return JSON.parse(text) as Record<string, unknown>;
  } catch (error) {
    if (error instanceof StudioError) throw error;
    throw new StudioError(
      'bad-file',
      `${source.name}: its header is not valid JSON.`,
      { file: source.name },
      { cause: error },
    );
  }
}

function parseTensor(source: ByteSource, name: string, entry: unknown, dataOffset: number): SafetensorsTensor {
  const { dtype: dtypeName, shape, data_offsets: range } = (entry ?? {}) as Record<string, unknown>;
  const dtype = typeof dtypeName === 'string' ? dtypeOfSafetensors(dtypeName) : undefined;
  if (!dtype) throw bad(source, `tensor ${name} has dtype ${JSON.stringify(dtypeName)}, which is not known here`);
  if (!isCounts(shape) || !isCounts(range) || range.length !== 2) {
    throw bad(source, `tensor ${name} lacks a shape or data_offsets of whole numbers`);
  }
  if (shape.length > MAX_DIMENSIONS) throw bad(source, `tensor ${name} has more than ${MAX_DIMENSIONS} dimensions`);
  const [begin, end] = range;
  const bytes = elementCount(shape) * dtypeBytes(dtype);
  if (end - begin !== bytes) throw bad(source, `tensor ${name} of ${bytes} bytes has a range of ${end - begin}`);
  if (dataOffset + end > source.bytes) throw bad(source, `tensor ${name} reaches beyond the end of the file`);
  return { name, dtype, shape, offset: dataOffset + begin, bytes };
}

function isCounts(value: unknown): value is number[] {
  return Array.isArray(value) && value.every((item) => Number.isSafeInteger(item) && item >= 0);
}

function parseMetadata(source: ByteSource, value: unknown): Record<string, string> {
  if (value === undefined) return {};
  const isText =
    typeof value === 'object' && value !== null && Object.values(value).every((v) => typeof v === 'string');
  if (!isText || Array.isArray(value)) throw bad(source, '__metadata__ is not a map from text to text');
  return value as Record<string, string>;
}

export interface SafetensorsToWrite {
  readonly name: string;
  readonly dtype: DType;
  readonly shape: readonly number[];
  /** Asked for once; together exactly as many bytes as dtype and shape say, row-major and little-endian. */
  readonly chunks: () => ByteChunks;
}

/** The exact size in bytes of what `writeSafetensors` makes. */
export function safetensorsBytes(
  tensors: readonly SafetensorsToWrite[],
  metadata: Readonly<Record<string, string>> = {},
): number {
  const { header, dataBytes } = planFile(tensors, metadata);
  return header.length + dataBytes;
}

/**
 * Writes a .safetensors file in one pass; tensors are pulled one after the other, wider dtypes first so that each is
 * aligned, otherwise in the given order. Returns the size of the file.
 */
export async function writeSafetensors(
  tensors: readonly SafetensorsToWrite[],
  sink: ByteSink,
  metadata: Readonly<Record<string, string>> = {},
): Promise<number> {
  const { header, ordered, dataBytes } = planFile(tensors, metadata);
  await sink.write(header);
  for (const tensor of ordered) {
    const expected = elementCount(tensor.shape) * dtypeBytes(tensor.dtype);
    let bytes = 0;
    for await (const chunk of tensor.chunks()) {
      bytes += chunk.length;
      if (bytes > expected) break;
      await sink.write(chunk);
    }
    if (bytes !== expected) {
      throw new StudioError('internal', `Tensor ${tensor.name} was announced as ${expected} bytes and got ${bytes}.`);
    }
  }
  return header.length + dataBytes;
}

function planFile(tensors: readonly SafetensorsToWrite[], metadata: Readonly<Record<string, string>>) {
  const ordered = [...tensors].sort((a, b) => dtypeBytes(b.dtype) - dtypeBytes(a.dtype));
  const entries: [string, unknown][] = Object.keys(metadata).length > 0 ? [[METADATA_KEY, metadata]] : [];
  const names = new Set<string>([METADATA_KEY]);
  let dataBytes = 0;
  for (const { name, dtype, shape } of ordered) {
    const { safetensors } = DTYPES[dtype];
    if (!safetensors) throw new StudioError('bad-data', `Tensor ${name} is ${dtype}, which safetensors cannot hold.`);
    if (names.has(name))
      throw new StudioError('bad-data', `safetensors cannot hold the name ${JSON.stringify(name)} twice.`);
    names.add(name);
    const end = dataBytes + elementCount(shape) * dtypeBytes(dtype);
    entries.push([name, { dtype: safetensors, shape, data_offsets: [dataBytes, end] }]);
    dataBytes = end;
  }
  const json = new TextEncoder().encode(JSON.stringify(Object.fromEntries(entries)));
  const headerBytes = Math.ceil(json.length / 8) * 8;
  const header = new Uint8Array(LENGTH_BYTES + headerBytes).fill(0x20);
  new DataView(header.buffer).setBigUint64(0, BigInt(headerBytes), true);
  header.set(json, LENGTH_BYTES);
  return { header, ordered, dataBytes };
}
