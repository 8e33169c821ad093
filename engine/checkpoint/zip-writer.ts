import { StudioError } from '../errors.ts';
import { type ByteChunks, type ByteSink, PIECE_BYTES } from './byte-source.ts';
import { crc32 } from './crc32.ts';
import {
  CENTRAL_HEADER,
  DATA_DESCRIPTOR,
  END,
  LOCAL_HEADER,
  MARKER_16,
  MARKER_32,
  PADDING_EXTRA,
  STORED,
  ZIP64_END,
  ZIP64_EXTRA,
  ZIP64_LOCATOR,
} from './zip-format.ts';

/** Data of every record starts at a multiple of this, as torch has it, so that torch can map the file. */
const ALIGNMENT = 64;
/** Sizes and CRC follow the data (bit 3); names are UTF-8 (bit 11). */
const FLAGS = 0x0808;
/** 1980-01-01, so that equal contents make equal files. */
const DATE = 0x0021;
/** zip64 extra field of a local header: id, length, two sizes. */
const LOCAL_ZIP64_BYTES = 20;

export interface ZipRecord {
  readonly name: string;
  readonly bytes: number;
}

interface Layout {
  readonly name: Uint8Array;
  readonly bytes: number;
  readonly headerOffset: number;
  readonly zip64: boolean;
  readonly paddingBytes: number;
  readonly dataOffset: number;
  readonly endOffset: number;
}

/** Where a record lies that begins at `headerOffset`. Everything about offsets is decided here, for size and writing alike. */
function layOut(record: ZipRecord, headerOffset: number): Layout {
  const name = new TextEncoder().encode(record.name);
  const zip64 = record.bytes >= MARKER_32 || headerOffset >= MARKER_32;
  const unpadded = headerOffset + LOCAL_HEADER.bytes + name.length + (zip64 ? LOCAL_ZIP64_BYTES : 0) + 4;
  const paddingBytes = (ALIGNMENT - (unpadded % ALIGNMENT)) % ALIGNMENT;
  const dataOffset = unpadded + paddingBytes;
  const descriptorBytes = zip64 ? DATA_DESCRIPTOR.zip64Bytes : DATA_DESCRIPTOR.bytes;
  const endOffset = dataOffset + record.bytes + descriptorBytes;
  return { name, bytes: record.bytes, headerOffset, zip64, paddingBytes, dataOffset, endOffset };
}

const centralZip64Bytes = (layout: Layout): number => {
  const wide = (layout.bytes >= MARKER_32 ? 16 : 0) + (layout.headerOffset >= MARKER_32 ? 8 : 0);
  return wide > 0 ? 4 + wide : 0;
};

/** The exact size of the zip file that ZipWriter makes of these records in this order. */
export function zipBytes(records: Iterable<ZipRecord>): number {
  let offset = 0;
  let central = 0;
  for (const record of records) {
    const layout = layOut(record, offset);
    offset = layout.endOffset;
    central += CENTRAL_HEADER.bytes + layout.name.length + centralZip64Bytes(layout);
  }
  return offset + central + ZIP64_END.bytes + ZIP64_LOCATOR.bytes + END.bytes;
}

/**
 * Writes a zip file record by record, in one pass: stored, aligned, with CRCs behind the data and zip64 end records, as
 * torch.save writes them. Memory does not grow with the data.
 */
export class ZipWriter {
  private offset = 0;
  private readonly written: { layout: Layout; crc: number }[] = [];
  private readonly names = new Set<string>();

  constructor(private readonly sink: ByteSink) {}

  /** One record of exactly `record.bytes` bytes; other lengths and a name used twice are 'internal'. */
  async record(record: ZipRecord, chunks: ByteChunks): Promise<void> {
    if (this.names.has(record.name)) throw new StudioError('internal', `Zip record ${record.name} is written twice.`);
    this.names.add(record.name);
    const layout = layOut(record, this.offset);
    if (layout.name.length >= MARKER_16) throw new StudioError('internal', 'A zip record name is too long.');
    await this.sink.write(localHeader(layout));

    const checksum = this.sink.crc32 ?? crc32;
    let crc = 0;
    let bytes = 0;
    for await (const chunk of chunks) {
      bytes += chunk.length;
      if (bytes > record.bytes) break;
      for (let at = 0; at < chunk.length; at += PIECE_BYTES) {
        const piece = chunk.subarray(at, at + PIECE_BYTES);
        crc = checksum(piece, crc);
        await this.sink.write(piece);
      }
    }
    if (bytes !== record.bytes) {
      throw new StudioError(
        'internal',
        `Zip record ${record.name} was announced as ${record.bytes} bytes and got ${bytes}.`,
      );
    }
    await this.sink.write(dataDescriptor(layout, crc));
    this.written.push({ layout, crc });
    this.offset = layout.endOffset;
  }

  /** The central directory. Returns the size of the file. */
  async finish(): Promise<number> {
    const start = this.offset;
    for (const { layout, crc } of this.written) {
      const header = centralHeader(layout, crc);
      await this.sink.write(header);
      this.offset += header.length;
    }
    const end = endRecords(this.written.length, start, this.offset - start);
    await this.sink.write(end);
    return this.offset + end.length;
  }
}

function localHeader(layout: Layout): Uint8Array {
  const { name, zip64, paddingBytes } = layout;
  const record = new Fields(layout.dataOffset - layout.headerOffset);
  const size = zip64 ? MARKER_32 : 0;
  record.u32(LOCAL_HEADER.signature).u16(0).u16(FLAGS).u16(STORED).u16(0).u16(DATE).u32(0).u32(size).u32(size);
  record.u16(name.length).u16((zip64 ? LOCAL_ZIP64_BYTES : 0) + 4 + paddingBytes);
  record.raw(name);
  if (zip64) record.u16(ZIP64_EXTRA).u16(16).u64(layout.bytes).u64(layout.bytes);
  record.u16(PADDING_EXTRA).u16(paddingBytes).fill(0x5a, paddingBytes);
  return record.bytes;
}

function dataDescriptor(layout: Layout, crc: number): Uint8Array {
  const record = new Fields(layout.zip64 ? DATA_DESCRIPTOR.zip64Bytes : DATA_DESCRIPTOR.bytes);
  record.u32(DATA_DESCRIPTOR.signature).u32(crc);
  if (layout.zip64) record.u64(layout.bytes).u64(layout.bytes);
  else record.u32(layout.bytes).u32(layout.bytes);
  return record.bytes;
}

function centralHeader(layout: Layout, crc: number): Uint8Array {
  const wideSize = layout.bytes >= MARKER_32;
  const wideOffset = layout.headerOffset >= MARKER_32;
  const extraBytes = centralZip64Bytes(layout);
  const record = new Fields(CENTRAL_HEADER.bytes + layout.name.length + extraBytes);
  record.u32(CENTRAL_HEADER.signature).u16(0).u16(0).u16(FLAGS).u16(STORED).u16(0).u16(DATE).u32(crc);
  record.u32(wideSize ? MARKER_32 : layout.bytes).u32(wideSize ? MARKER_32 : layout.bytes);
  record.u16(layout.name.length).u16(extraBytes).u16(0).u16(0).u16(0).u32(0);
  record.u32(wideOffset ? MARKER_32 : layout.headerOffset).raw(layout.name);
  if (extraBytes > 0) record.u16(ZIP64_EXTRA).u16(extraBytes - 4);
  if (wideSize) record.u64(layout.bytes).u64(layout.bytes);
  if (wideOffset) record.u64(layout.headerOffset);
  return record.bytes;
}

function endRecords(count: number, start: number, bytes: number): Uint8Array {
  const record = new Fields(ZIP64_END.bytes + ZIP64_LOCATOR.bytes + END.bytes);
  record
    .u32(ZIP64_END.signature)
    .u64(ZIP64_END.bytes - 12)
    .u16(0x031e)
    .u16(0x2d)
    .u32(0)
    .u32(0);
  record.u64(count).u64(count).u64(bytes).u64(start);
  record
    .u32(ZIP64_LOCATOR.signature)
    .u32(0)
    .u64(start + bytes)
    .u32(1);
  const shortCount = Math.min(count, MARKER_16);
  record.u32(END.signature).u16(0).u16(0).u16(shortCount).u16(shortCount);
  record.u32(Math.min(bytes, MARKER_32)).u32(Math.min(start, MARKER_32)).u16(0);
  return record.bytes;
}

/** Little-endian fields, one after the other. */
class Fields {
  readonly bytes: Uint8Array;
  private readonly view: DataView;
  private at = 0;

  constructor(length: number) {
    this.bytes = new Uint8Array(length);
    this.view = new DataView(this.bytes.buffer);
  }

  u16(value: number): this {
    this.view.setUint16(this.at, value, true);
    this.at += 2;
    return this;
  }

  u32(value: number): this {
    this.view.setUint32(this.at, value, true);
    this.at += 4;
    return this;
  }

  u64(value: number): this {
    this.view.setBigUint64(this.at, BigInt(value), true);
    this.at += 8;
    return this;
  }

  raw(bytes: Uint8Array): this {
    this.bytes.set(bytes, this.at);
    this.at += bytes.length;
    return this;
  }

  fill(value: number, count: number): this {
    this.bytes.fill(value, this.at, this.at + count);
    this.at += count;
    return this;
  }
}
