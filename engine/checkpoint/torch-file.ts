import { StudioError } from '../errors.ts';
import type { ByteSource } from './byte-source.ts';
import { dtypeBytes, elementCount, swapBytes } from './dtype.ts';
import { readPickle } from './pickle-reader.ts';
import { type PyValue, sequenceItems } from './python-value.ts';
import { contiguousStride, gatherBlock, isContiguous, spanElements, stridedBlocks } from './tensor-layout.ts';
import { isTensor, type TorchStorage, type TorchTensor, torchGlobals, torchPersistent } from './torch-globals.ts';
import { openLegacyTorch, startsAsLegacyTorch } from './torch-legacy.ts';
import { openZip, openZipEntry, readZipEntry, verifyZipEntry, type ZipArchive, type ZipEntry } from './zip-reader.ts';

/** The structure of even a very large model; its tensors are elsewhere in the file. */
const MAX_PICKLE_BYTES = 256 * 1024 * 1024;
const MAX_SMALL_RECORD_BYTES = 1024;
/** A view that repeats elements (stride 0) may be larger than its storage, but not without bound. */
const MAX_REPEATED_BYTES = 64 * 1024 * 1024;

/** Of a view whose elements lie apart, so much of the storage is in memory at once. */
const MAX_SPAN_BYTES = 16 * 1024 * 1024;

/** Enough to tell the formats apart. */
const START_BYTES = 16;
const ZIP_START = [0x50, 0x4b, 0x03, 0x04];

/** An opened file of torch.save: its values, with tensors that are read when asked for. */
export class TorchFile {
  private readonly contents = new Map<string, Promise<ByteSource>>();

  constructor(
    readonly source: ByteSource,
    /** What was saved. Tensors in it have kind 'tensor'. */
    readonly value: PyValue,
    private readonly bigEndian: boolean,
    private readonly openStorage: (storage: TorchStorage) => Promise<ByteSource>,
    /** Reads every record once and throws 'bad-file' where its CRC-32 is another; the older format has none. */
    readonly verify: () => Promise<void>,
  ) {}

  /**
   * Elements [first, first + count), row-major and little-endian, in a fresh array at offset 0 of its buffer. Of a
   * contiguous tensor no other bytes are read, of another one the rows that hold them.
   */
  async readElements(tensor: TorchTensor, first: number, count: number): Promise<Uint8Array<ArrayBuffer>> {
    const { shape, stride, storageOffset } = tensor;
    if (first < 0 || count < 0 || first + count > elementCount(shape)) {
      throw new StudioError('internal', `Elements ${first} to ${first + count} of shape [${shape}] were asked for.`);
    }
    if (count === 0) return new Uint8Array(0);
    if (isContiguous(shape, stride)) return this.readView({ ...tensor, stride: [1] }, [count], storageOffset + first);
    const rowElements = elementCount(shape.slice(1));
    const row = Math.floor(first / rowElements);
    const rowShape = [Math.ceil((first + count) / rowElements) - row, ...shape.slice(1)];
    const rows = await this.readView(tensor, rowShape, storageOffset + row * stride[0]);
    const skipped = first - row * rowElements;
    const elementBytes = dtypeBytes(tensor.dtype);
    return rows.slice(skipped * elementBytes, (skipped + count) * elementBytes);
  }

  private async readView(
    tensor: TorchTensor,
    shape: readonly number[],
    offset: number,
  ): Promise<Uint8Array<ArrayBuffer>> {
    const { dtype, stride } = tensor;
    const elementBytes = dtypeBytes(dtype);
    const content = await this.content(tensor.storage);
    const read = async (from: number, elements: number) => {
      const data = await content.read((offset + from) * elementBytes, elements * elementBytes);
      if (this.bigEndian) swapBytes(data, dtype);
      return data;
    };
    if (isContiguous(shape, stride)) return read(0, elementCount(shape));
    const out = new Uint8Array(elementCount(shape) * elementBytes);
    const outStride = contiguousStride(shape);
    for (const block of stridedBlocks(shape, stride, MAX_SPAN_BYTES / elementBytes)) {
      const data = await read(block.from, spanElements(block.shape, stride));
      gatherBlock(data, block, stride, out, outStride, elementBytes);
    }
    return out;
  }

  /** Unpacked or located once, then kept. */
  private content(storage: TorchStorage): Promise<ByteSource> {
    let content = this.contents.get(storage.key);
    if (!content) {
      content = this.openStorage(storage);
      this.contents.set(storage.key, content);
    }
    return content;
  }
}

/** Whether the first bytes of a file are those of a zip file, which torch.save has written since 1.6. */
export const startsAsZip = (start: Uint8Array): boolean => ZIP_START.every((byte, i) => start[i] === byte);

/**
 * Opens what torch.save wrote, executing nothing, and checks every tensor against its storage and every storage against
 * its record, in the zip format and in the one from before torch 1.6. Errors: 'refused-global' names a class or function
 * that no checkpoint needs; 'bad-file' says what is damaged.
 */
export async function openTorchFile(source: ByteSource): Promise<TorchFile> {
  const start = await source.read(0, Math.min(START_BYTES, source.bytes));
  if (startsAsLegacyTorch(start)) {
    const { value, bigEndian, openStorage } = await openLegacyTorch(source, MAX_PICKLE_BYTES);
    checkTensors(source, value);
    return new TorchFile(source, value, bigEndian, openStorage, async () => undefined);
  }
  const archive = await openZip(source);
  const prefix = findPrefix(source, archive);
  const pickle = await readZipEntry(archive, archive.entries.get(`${prefix}/data.pkl`)!, MAX_PICKLE_BYTES);

  const records = new Map<string, ZipEntry>();
  const value = readPickle(pickle, {
    file: source.name,
    globals: torchGlobals,
    persistent: (id) => {
      const storage = torchPersistent(id);
      const record = archive.entries.get(`${prefix}/data/${storage.key}`);
      if (record?.bytes !== storage.bytes) {
        throw bad(
          source,
          `storage ${storage.key} should have ${storage.bytes} bytes and has ${record?.bytes ?? 'none'}`,
        );
      }
      records.set(storage.key, record);
      return storage;
    },
  });
  checkTensors(source, value);
  return new TorchFile(
    source,
    value,
    await isBigEndian(archive, prefix),
    (storage) => openZipEntry(archive, records.get(storage.key)!),
    async () => {
      for (const entry of archive.entries.values()) await verifyZipEntry(archive, entry);
    },
  );
}

function bad(source: ByteSource, what: string): StudioError {
  return new StudioError('bad-file', `${source.name} is damaged: ${what}.`, { file: source.name });
}

/** The one folder in which torch.save puts everything; its name is free. */
function findPrefix(source: ByteSource, archive: ZipArchive): string {
  const pickles = [...archive.entries.keys()].filter((name) => /^[^/]+\/data\.pkl$/.test(name));
  if (pickles.length !== 1) {
    throw new StudioError(
      'bad-file',
      `${source.name} is a zip file, but not one that torch.save wrote: it has no data.pkl.`,
      {
        file: source.name,
      },
    );
  }
  const prefix = pickles[0].slice(0, -'/data.pkl'.length);
  if (archive.entries.has(`${prefix}/constants.pkl`)) {
    throw new StudioError(
      'bad-file',
      `${source.name} is a TorchScript program. Save its state_dict() with torch.save instead.`,
      {
        file: source.name,
      },
    );
  }
  return prefix;
}

async function isBigEndian(archive: ZipArchive, prefix: string): Promise<boolean> {
  const entry = archive.entries.get(`${prefix}/byteorder`);
  if (!entry) return false;
  const order = new TextDecoder().decode(await readZipEntry(archive, entry, MAX_SMALL_RECORD_BYTES)).trim();
  if (order !== 'little' && order !== 'big') throw bad(archive.source, `byte order ${JSON.stringify(order)}`);
  return order === 'big';
}

/** Every tensor of the tree must lie within its storage. */
function checkTensors(source: ByteSource, value: PyValue): void {
  for (const tensor of tensorsIn(value)) {
    const elementBytes = dtypeBytes(tensor.dtype);
    const span = spanElements(tensor.shape, tensor.stride);
    const end = (tensor.storageOffset + span) * elementBytes;
    if (!Number.isSafeInteger(end) || (span > 0 && end > tensor.storage.bytes)) {
      throw bad(source, `a tensor of shape [${tensor.shape}] reaches beyond its storage ${tensor.storage.key}`);
    }
    const bytes = elementCount(tensor.shape) * elementBytes;
    if (bytes > Math.max(tensor.storage.bytes, MAX_REPEATED_BYTES)) {
      throw bad(
        source,
        `a tensor of shape [${tensor.shape}] repeats its storage ${tensor.storage.key} to ${bytes} bytes`,
      );
    }
  }
}

/** The tensors of a tree, each once. */
export function tensorsIn(value: PyValue): Set<TorchTensor> {
  const found = new Set<TorchTensor>();
  const seen = new Set<PyValue>();
  const walk = (item: PyValue): void => {
    if (item === null || typeof item !== 'object' || seen.has(item)) return;
    seen.add(item);
    if (isTensor(item)) found.add(item);
    else if (item instanceof Map) {
      for (const [key, inner] of item) {
        walk(key);
        walk(inner);
      }
    } else if (item instanceof Set) for (const inner of item) walk(inner);
    else for (const inner of sequenceItems(item) ?? []) walk(inner);
  };
  walk(value);
  return found;
}
