import { StudioError } from '../errors.ts';
import { type ByteSource, bytesSource, sliceSource } from './byte-source.ts';
import { coverFault, isRowChunk } from './chunk-cover.ts';
import { type DcpPath, type DcpPlace, type DcpTensor, METADATA_FILE, readDcpMetadata } from './dcp-metadata.ts';
import { type DType, dtypeBytes, elementCount } from './dtype.ts';
import type { PyDict } from './python-value.ts';
import { openTorchFile, type TorchFile } from './torch-file.ts';
import { isTensor, type TorchTensor } from './torch-globals.ts';

/** The file of Fabric's own keys: what was saved beside model and optimizer. */
export const META_FILE = 'meta.pt';
/** In meta.pt and at the start of each of our rank files: all files of one save have the same. */
export const SAVE_ID_KEY = 'studio_save_id';

const MAX_METADATA_BYTES = 256 * 1024 * 1024;
const MAX_BYTES_ITEM = 64 * 1024 * 1024;
/** Entries up to this are read at once; most of a checkpoint's are. */
const WHOLE_ENTRY_BYTES = 256 * 1024;
/** Opened entries that are kept, since a tensor is read in pieces. */
const KEPT_ENTRIES = 16;

/** One chunk of a tensor and where it lies. */
export interface DcpPart {
  readonly offsets: readonly number[];
  readonly sizes: readonly number[];
  readonly place: DcpPlace;
}

export interface DcpFolderTensor {
  readonly name: string;
  readonly path: DcpPath;
  readonly dtype: DType;
  readonly shape: readonly number[];
  /** In the order of the metadata. */
  readonly parts: readonly DcpPart[];
  /** Why it cannot be read: what its chunks do not cover, or cover twice. */
  readonly fault: string | undefined;
}

export interface DcpFolderValue {
  readonly name: string;
  readonly path: DcpPath;
  readonly place: DcpPlace;
}

/** An opened sharded checkpoint. Names are those of `.metadata`, prefixes included. */
export class DcpFolder {
  private readonly entries = new Map<string, Promise<TorchFile>>();

  constructor(
    readonly name: string,
    readonly tensors: ReadonlyMap<string, DcpFolderTensor>,
    /** What is no tensor: options of the optimizer. */
    readonly values: ReadonlyMap<string, DcpFolderValue>,
    /** meta.pt, whose value is a dict, or null where there is none (torch's own checkpoints, without Fabric). */
    readonly metaFile: TorchFile | null,
    private readonly files: ReadonlyMap<string, ByteSource>,
  ) {}

  /**
   * Elements [first, first + count), row-major and little-endian, whatever the chunks are; of chunks of rows no other bytes
   * are read. 'bad-file' names a tensor whose chunks do not cover it.
   */
  async readElements(name: string, first: number, count: number): Promise<Uint8Array<ArrayBuffer>> {
    const tensor = this.tensor(name);
    const { dtype, shape, parts, fault } = tensor;
    if (fault) throw bad(this.name, `${name}: ${fault}`);
    if (first < 0 || count < 0 || first + count > elementCount(shape)) {
      throw new StudioError('internal', `Elements ${first} to ${first + count} of ${name} [${shape}] were asked for.`);
    }
    const reads = parts.flatMap((part) => runsOf(shape, part, first, count).map((read) => ({ part, ...read })));
    // One chunk holds it all, as where as many ranks load as have saved: it is what was read.
    const [only] = reads;
    if (reads.length === 1 && only.length === count && only.to.length === 1)
      return this.readPart(tensor, only.part, only.from, count);
    const elementBytes = dtypeBytes(dtype);
    const out = new Uint8Array(count * elementBytes);
    for (const { part, from, to, length } of reads) {
      const data = await this.readPart(tensor, part, from, length);
      for (const run of to)
        out.set(data.subarray(run.at * elementBytes, run.end * elementBytes), run.into * elementBytes);
    }
    return out;
  }

  /** A value that is no tensor, as the torch file that it is: it may hold tensors deep inside. */
  async openValue(name: string): Promise<TorchFile> {
    const value = this.values.get(name);
    if (!value) throw new StudioError('internal', `${this.name} has no value ${name}.`);
    if (value.place.bytes > MAX_BYTES_ITEM) {
      throw new StudioError('too-large', `${this.name}: ${name} has ${value.place.bytes} bytes.`);
    }
    return openTorchFile(await this.entrySource(value.place));
  }

  /** Reads every entry once and throws 'bad-file' where a CRC-32 is another, or an entry is not what `.metadata` says. */
  async verify(): Promise<void> {
    for (const tensor of this.tensors.values()) {
      if (tensor.fault) throw bad(this.name, `${tensor.name}: ${tensor.fault}`);
      for (const part of tensor.parts) await (await this.openPart(tensor, part)).file.verify();
    }
    for (const name of this.values.keys()) await (await this.openValue(name)).verify();
    await this.metaFile?.verify();
  }

  private tensor(name: string): DcpFolderTensor {
    const tensor = this.tensors.get(name);
    if (!tensor) throw new StudioError('bad-data', `${this.name} has no tensor ${name}.`, { file: this.name });
    return tensor;
  }

  private async readPart(tensor: DcpFolderTensor, part: DcpPart, first: number, count: number) {
    const { file, stored } = await this.openPart(tensor, part);
    return file.readElements(stored, first, count);
  }

  private async openPart(tensor: DcpFolderTensor, part: DcpPart): Promise<{ file: TorchFile; stored: TorchTensor }> {
    const { place, sizes } = part;
    const key = `${place.file}:${place.start}:${place.bytes}`;
    const known = this.entries.get(key);
    const entry = known ?? this.entrySource(place).then(openTorchFile);
    this.entries.delete(key);
    this.entries.set(key, entry);
    if (this.entries.size > KEPT_ENTRIES) this.entries.delete(this.entries.keys().next().value!);
    const file = await entry;
    const stored = file.value;
    if (!isTensor(stored) || stored.dtype !== tensor.dtype || stored.shape.join() !== sizes.join()) {
      throw bad(this.name, `${place.file} does not hold the ${tensor.dtype} chunk [${sizes}] of ${tensor.name}`);
    }
    return { file, stored };
  }

  private async entrySource({ name, file, start, bytes }: DcpPlace): Promise<ByteSource> {
    const entry = sliceSource(this.files.get(file)!, start, bytes, `${this.name}/${file} (${name})`);
    return bytes > WHOLE_ENTRY_BYTES ? entry : bytesSource(entry.name, await entry.read(0, bytes));
  }
}

/** Elements [from, from + length) of a chunk, and where runs of them go. All positions are in elements. */
interface PartRead {
  readonly from: number;
  readonly length: number;
  readonly to: readonly { readonly at: number; readonly end: number; readonly into: number }[];
}

/** What must be read of a chunk to give elements [first, first + count) of its tensor: at most one range of it. */
function runsOf(shape: readonly number[], part: DcpPart, first: number, count: number): PartRead[] {
  const { offsets, sizes } = part;
  if (count === 0 || sizes.includes(0)) return [];
  const rowElements = elementCount(shape.slice(1));
  const partStart = (offsets[0] ?? 0) * rowElements;
  const partRows = sizes[0] ?? 1;
  if (isRowChunk(shape, part)) {
    const from = Math.max(first, partStart);
    const length = Math.min(first + count, partStart + partRows * rowElements) - from;
    return length > 0 ? [{ from: from - partStart, length, to: [{ at: 0, end: length, into: from - first }] }] : [];
  }
  const firstRow = Math.max(offsets[0], Math.floor(first / rowElements));
  const endRow = Math.min(offsets[0] + partRows, Math.ceil((first + count) / rowElements));
  if (endRow <= firstRow) return [];
  const partRowElements = elementCount(sizes.slice(1));
  const length = (endRow - firstRow) * partRowElements;
  const to = [];
  for (let at = 0; at < length; at += sizes[sizes.length - 1]) {
    const into = flatIndex(shape, part, firstRow, at) - first;
    const end = Math.min(sizes[sizes.length - 1], count - into);
    const skipped = Math.max(0, -into);
    if (end > skipped) to.push({ at: at + skipped, end: at + end, into: into + skipped });
  }
  return [{ from: (firstRow - offsets[0]) * partRowElements, length, to }];
}

/** The flat index in the tensor of element `at` of a chunk, counted from the chunk's part of row `row`. */
function flatIndex(shape: readonly number[], { offsets, sizes }: DcpPart, row: number, at: number): number {
  let index = 0;
  let stride = 1;
  let rest = at;
  for (let dim = shape.length - 1; dim > 0; dim--) {
    index += (offsets[dim] + (rest % sizes[dim])) * stride;
    rest = Math.floor(rest / sizes[dim]);
    stride *= shape[dim];
  }
  return index + (row + rest) * stride;
}

/**
 * Opens a sharded checkpoint from its files, by name: `.metadata`, the files that it names, and meta.pt if there is one.
 * Reads only these two and the start of each of our own rank files. Errors: 'bad-file' for a file that is missing or
 * shorter than `.metadata` says, a chunk that lies nowhere, or rank files of different saves; 'refused-global'.
 */
export async function openDcpFolder(name: string, files: ReadonlyMap<string, ByteSource>): Promise<DcpFolder> {
  const metadataSource = files.get(METADATA_FILE);
  if (!metadataSource) throw bad(name, `it has no ${METADATA_FILE}, so it is no sharded checkpoint or not a whole one`);
  if (metadataSource.bytes > MAX_METADATA_BYTES) {
    throw new StudioError('too-large', `${name}: ${METADATA_FILE} has ${metadataSource.bytes} bytes.`);
  }
  const bytes = await metadataSource.read(0, metadataSource.bytes);
  const { items, paths, places } = readDcpMetadata(`${name}/${METADATA_FILE}`, bytes);
  const placeOf = indexPlaces(name, places, files);

  const tensors = new Map<string, DcpFolderTensor>();
  const values = new Map<string, DcpFolderValue>();
  for (const [item, facts] of items) {
    const path = paths.get(item)!;
    if (facts.kind === 'bytes') values.set(item, { name: item, path, place: placeOf(item, null) });
    else tensors.set(item, tensorOf(item, path, facts, placeOf));
  }
  const metaFile = await openMeta(name, files.get(META_FILE));
  const saveId = metaFile && (metaFile.value as PyDict).get(SAVE_ID_KEY);
  if (typeof saveId === 'string') await checkSaveId(name, saveId, places, files);
  return new DcpFolder(name, tensors, values, metaFile, files);
}

type PlaceOf = (name: string, offsets: readonly number[] | null) => DcpPlace;

function tensorOf(name: string, path: DcpPath, tensor: DcpTensor, placeOf: PlaceOf): DcpFolderTensor {
  const { dtype, shape, chunks } = tensor;
  const parts = chunks.map(({ offsets, sizes }) => ({ offsets, sizes, place: placeOf(name, offsets) }));
  return { name, path, dtype, shape, parts, fault: coverFault(shape, chunks) ?? sizeFault(dtype, parts) };
}

/** No writer packs an entry, so a chunk cannot be longer than it; a shape that is a lie asks for no memory. */
function sizeFault(dtype: DType, parts: readonly DcpPart[]): string | undefined {
  const lie = parts.find(({ sizes, place }) => elementCount(sizes) * dtypeBytes(dtype) > place.bytes);
  return lie && `its chunk [${lie.sizes}] does not fit the ${lie.place.bytes} bytes of ${lie.place.file} that hold it`;
}

/** Finds places by name and offsets, after holding each against its file. */
function indexPlaces(folder: string, places: readonly DcpPlace[], files: ReadonlyMap<string, ByteSource>): PlaceOf {
  const keyOf = (name: string, offsets: readonly number[] | null) => JSON.stringify([name, offsets ?? []]);
  const known = new Map<string, DcpPlace>();
  for (const place of places) {
    const file = files.get(place.file);
    if (!file) throw bad(folder, `${place.file} is missing, which holds ${place.name}`);
    if (place.start + place.bytes > file.bytes) {
      throw bad(
        folder,
        `${place.file} has ${file.bytes} bytes and is cut short: ${place.name} ends at byte ${place.start + place.bytes}`,
      );
    }
    const key = keyOf(place.name, place.offsets);
    if (known.has(key)) throw bad(folder, `${place.name} lies in two places`);
    known.set(key, place);
  }
  return (name, offsets) => {
    const place = known.get(keyOf(name, offsets));
    if (!place) throw bad(folder, `${name}${offsets?.length ? ` at [${offsets}]` : ''} lies in none of its files`);
    return place;
  };
}

async function openMeta(folder: string, source: ByteSource | undefined): Promise<TorchFile | null> {
  if (!source) return null;
  const file = await openTorchFile(source);
  if (!(file.value instanceof Map)) throw bad(folder, `${META_FILE} holds no dict`);
  return file;
}

/**
 * Our rank files begin with the save's id, before the first entry that `.metadata` knows. A file of another save of the
 * same model would otherwise fit in every length and offset. Where no file has an id, torch wrote the folder, and the key
 * in meta.pt came along with others from a checkpoint of ours.
 */
async function checkSaveId(
  folder: string,
  saveId: string,
  places: readonly DcpPlace[],
  files: ReadonlyMap<string, ByteSource>,
): Promise<void> {
  const starts = new Map<string, number>();
  for (const { file, start } of places) starts.set(file, Math.min(start, starts.get(file) ?? start));
  const ours = [...starts.values()].some((start) => start > 0);
  for (const [file, start] of ours ? starts : []) {
    const head = sliceSource(files.get(file)!, 0, start, `${folder}/${file} (${SAVE_ID_KEY})`);
    const value = head.bytes > 0 ? (await openTorchFile(head)).value : null;
    const found = value instanceof Map ? value.get(SAVE_ID_KEY) : null;
    if (found !== saveId) throw bad(folder, `${file} is of another save than ${META_FILE}`);
  }
}

function bad(folder: string, what: string): StudioError {
  return new StudioError('bad-file', `${folder} cannot be loaded: ${what}.`, { file: folder });
}
