import { StudioError } from '../errors.ts';
import { type ByteSource, bytesSource, readPieces, sliceSource } from './byte-source.ts';
import { crc32 } from './crc32.ts';
import { inflatedSource } from './inflated-source.ts';
import {
  CENTRAL_HEADER,
  DEFLATED,
  END,
  LOCAL_HEADER,
  MARKER_16,
  MARKER_32,
  STORED,
  ZIP64_END,
  ZIP64_EXTRA,
  ZIP64_LOCATOR,
} from './zip-format.ts';

export interface ZipEntry {
  readonly name: string;
  readonly deflated: boolean;
  /** Bytes in the file. */
  readonly storedBytes: number;
  /** Bytes of the content. */
  readonly bytes: number;
  readonly crc: number;
  readonly headerOffset: number;
}

export interface ZipArchive {
  readonly source: ByteSource;
  /** In the order of the central directory. */
  readonly entries: ReadonlyMap<string, ZipEntry>;
  /** Where the central directory begins; every record ends before it. */
  readonly directoryOffset: number;
}

const MAX_COMMENT_BYTES = 0xffff;
/** A directory for two million records; above, a file is no checkpoint. */
const MAX_DIRECTORY_BYTES = 256 * 1024 * 1024;
/** Deflate cannot shrink more than this, so a declared size beyond it is a lie. */
const MAX_DEFLATE_RATIO = 1032;
const ENCRYPTED_FLAG = 1;
/** A deflated record up to this is unpacked once and kept. */
const KEPT_BYTES = 1024 * 1024;

/**
 * Reads the central directory and holds it against the file: sizes, offsets, overlaps, names. Only stored and deflated
 * records, one disk, not encrypted; anything else and anything damaged is 'bad-file'. No record is read yet.
 */
export async function openZip(source: ByteSource): Promise<ZipArchive> {
  const end = await readEnd(source);
  if (end.offset + end.bytes > end.endOffset) throw bad(source, 'its directory does not lie before its end');
  if (end.bytes > MAX_DIRECTORY_BYTES) throw bad(source, `a directory of ${end.bytes} bytes`);
  if (end.count * CENTRAL_HEADER.bytes > end.bytes) throw bad(source, `${end.count} records do not fit its directory`);

  const entries = parseDirectory(source, await source.read(end.offset, end.bytes), end.count);
  const ordered = [...entries.values()].sort((a, b) => a.headerOffset - b.headerOffset);
  ordered.forEach((entry, i) => {
    const limit = ordered[i + 1]?.headerOffset ?? end.offset;
    if (entry.headerOffset + LOCAL_HEADER.bytes + entry.storedBytes > limit) {
      throw bad(source, `record ${entry.name} runs into what follows it`);
    }
  });
  return { source, entries, directoryOffset: end.offset };
}

/** The content of a record as a source of its own: a window on a stored one; a deflated one is unpacked, if large as it is read. */
export async function openZipEntry(archive: ZipArchive, entry: ZipEntry): Promise<ByteSource> {
  const { source } = archive;
  const header = new DataView((await source.read(entry.headerOffset, LOCAL_HEADER.bytes)).buffer);
  const nameBytes = header.getUint16(26, true);
  const extraBytes = header.getUint16(28, true);
  const nameOffset = entry.headerOffset + LOCAL_HEADER.bytes;
  const dataOffset = nameOffset + nameBytes + extraBytes;
  if (
    header.getUint32(0, true) !== LOCAL_HEADER.signature ||
    dataOffset + entry.storedBytes > archive.directoryOffset
  ) {
    throw bad(source, `record ${entry.name} is not where the directory says`);
  }
  if (decodeName(source, await source.read(nameOffset, nameBytes)) !== entry.name) {
    throw bad(source, `record ${entry.name} has another name in its own header`);
  }
  const stored = sliceSource(source, dataOffset, entry.storedBytes, `${source.name} (record ${entry.name})`);
  if (!entry.deflated) return stored;
  const inflated = inflatedSource(stored, entry.bytes);
  return entry.bytes > KEPT_BYTES ? inflated : bytesSource(stored.name, await inflated.read(0, entry.bytes));
}

/** The whole content of a record, its CRC checked. Above `maxBytes` it is refused as 'too-large'. */
export async function readZipEntry(
  archive: ZipArchive,
  entry: ZipEntry,
  maxBytes: number,
): Promise<Uint8Array<ArrayBuffer>> {
  if (entry.bytes > maxBytes) {
    throw new StudioError(
      'too-large',
      `${archive.source.name}: record ${entry.name} has ${entry.bytes} bytes, more than ${maxBytes}.`,
    );
  }
  const content = await openZipEntry(archive, entry);
  const bytes = await content.read(0, content.bytes);
  if ((archive.source.crc32 ?? crc32)(bytes, 0) !== entry.crc) throw badCrc(archive, entry);
  return bytes;
}

/** Reads a record once, in pieces, and throws 'bad-file' if its bytes are not those that were written (CRC-32). */
export async function verifyZipEntry(archive: ZipArchive, entry: ZipEntry): Promise<void> {
  const checksum = archive.source.crc32 ?? crc32;
  let crc = 0;
  for await (const piece of readPieces(await openZipEntry(archive, entry))) crc = checksum(piece, crc);
  if (crc !== entry.crc) throw badCrc(archive, entry);
}

function bad(source: ByteSource, what: string): StudioError {
  return new StudioError('bad-file', `${source.name} is not a whole zip file: ${what}. Copy or download it again.`, {
    file: source.name,
  });
}

function badCrc(archive: ZipArchive, entry: ZipEntry): StudioError {
  const { name } = archive.source;
  const what = `record ${entry.name} has changed since it was written: its CRC-32 differs`;
  return new StudioError('bad-file', `${name} is damaged (${what}). Copy or download it again.`, { file: name });
}

interface DirectoryEnd {
  count: number;
  offset: number;
  bytes: number;
  /** Where the end records begin. */
  endOffset: number;
}

/** The end record: the last one whose comment reaches exactly to the end of the file. */
async function readEnd(source: ByteSource): Promise<DirectoryEnd> {
  const tailBytes = Math.min(source.bytes, END.bytes + MAX_COMMENT_BYTES);
  const tailOffset = source.bytes - tailBytes;
  const tail = new DataView((await source.read(tailOffset, tailBytes)).buffer);
  for (let at = tailBytes - END.bytes; at >= 0; at--) {
    if (tail.getUint32(at, true) !== END.signature) continue;
    if (at + END.bytes + tail.getUint16(at + 20, true) !== tailBytes) continue;
    const disks = tail.getUint16(at + 4, true) | tail.getUint16(at + 6, true);
    const end = {
      count: tail.getUint16(at + 10, true),
      bytes: tail.getUint32(at + 12, true),
      offset: tail.getUint32(at + 16, true),
      endOffset: tailOffset + at,
    };
    if (disks !== 0 && disks !== MARKER_16) throw bad(source, 'it is one part of a file in several parts');
    const wide = end.count === MARKER_16 || end.bytes === MARKER_32 || end.offset === MARKER_32;
    return wide ? readZip64End(source, end.endOffset) : end;
  }
  throw bad(source, 'it has no directory at its end, so it is cut short or something else');
}

async function readZip64End(source: ByteSource, endOffset: number): Promise<DirectoryEnd> {
  const locatorOffset = endOffset - ZIP64_LOCATOR.bytes;
  if (locatorOffset < 0) throw bad(source, 'its zip64 locator is missing');
  const locator = new DataView((await source.read(locatorOffset, ZIP64_LOCATOR.bytes)).buffer);
  if (locator.getUint32(0, true) !== ZIP64_LOCATOR.signature) throw bad(source, 'its zip64 locator is missing');
  const recordOffset = Number(locator.getBigUint64(8, true));
  if (recordOffset + ZIP64_END.bytes > locatorOffset) throw bad(source, 'its zip64 end record is missing');
  const record = new DataView((await source.read(recordOffset, ZIP64_END.bytes)).buffer);
  if (record.getUint32(0, true) !== ZIP64_END.signature) throw bad(source, 'its zip64 end record is missing');
  return {
    count: Number(record.getBigUint64(32, true)),
    bytes: Number(record.getBigUint64(40, true)),
    offset: Number(record.getBigUint64(48, true)),
    endOffset: recordOffset,
  };
}

function parseDirectory(source: ByteSource, directory: Uint8Array<ArrayBuffer>, count: number): Map<string, ZipEntry> {
  const entries = new Map<string, ZipEntry>();
  const view = new DataView(directory.buffer);
  let at = 0;
  for (let i = 0; i < count; i++) {
    if (at + CENTRAL_HEADER.bytes > directory.length || view.getUint32(at, true) !== CENTRAL_HEADER.signature) {
      throw bad(source, `entry ${i} of its directory is damaged`);
    }
    const nameEnd = at + CENTRAL_HEADER.bytes + view.getUint16(at + 28, true);
    const extraEnd = nameEnd + view.getUint16(at + 30, true);
    const next = extraEnd + view.getUint16(at + 32, true);
    if (next > directory.length) throw bad(source, `entry ${i} of its directory is damaged`);
    const name = decodeName(source, directory.subarray(at + CENTRAL_HEADER.bytes, nameEnd));
    const sizes = readSizes(source, view, at, nameEnd, extraEnd, name);
    entries.set(checkName(source, name, entries), checkEntry(source, view, at, { name, ...sizes }));
    at = next;
  }
  if (at !== directory.length) throw bad(source, 'its directory holds more than its records');
  return entries;
}

/** Sizes and offset of a directory entry, from its zip64 extra field where the 32-bit ones are marked. */
function readSizes(source: ByteSource, view: DataView, at: number, extraStart: number, extraEnd: number, name: string) {
  const fields = [view.getUint32(at + 24, true), view.getUint32(at + 20, true), view.getUint32(at + 42, true)];
  if (fields.includes(MARKER_32)) {
    const [start, end] = findExtra(view, extraStart, extraEnd, ZIP64_EXTRA);
    let from = start;
    fields.forEach((field, i) => {
      if (field !== MARKER_32) return;
      if (from + 8 > end) throw bad(source, `record ${name} lacks its 64-bit sizes`);
      fields[i] = Number(view.getBigUint64(from, true));
      from += 8;
    });
  }
  const [bytes, storedBytes, headerOffset] = fields;
  return { bytes, storedBytes, headerOffset };
}

/** The content range of an extra field; empty where there is none. */
function findExtra(view: DataView, start: number, end: number, id: number): [number, number] {
  for (let at = start; at + 4 <= end; ) {
    const next = at + 4 + view.getUint16(at + 2, true);
    if (view.getUint16(at, true) === id && next <= end) return [at + 4, next];
    at = next;
  }
  return [end, end];
}

function checkEntry(
  source: ByteSource,
  view: DataView,
  at: number,
  entry: { name: string; bytes: number; storedBytes: number; headerOffset: number },
): ZipEntry {
  const method = view.getUint16(at + 10, true);
  if (view.getUint16(at + 8, true) & ENCRYPTED_FLAG) throw bad(source, `record ${entry.name} is encrypted`);
  if (method !== STORED && method !== DEFLATED) throw bad(source, `record ${entry.name} is packed by method ${method}`);
  if (method === STORED && entry.bytes !== entry.storedBytes) throw bad(source, `record ${entry.name} has two sizes`);
  if (entry.storedBytes > source.bytes || entry.bytes > entry.storedBytes * MAX_DEFLATE_RATIO) {
    throw bad(source, `record ${entry.name} claims ${entry.bytes} bytes, more than the file can hold`);
  }
  return { ...entry, deflated: method === DEFLATED, crc: view.getUint32(at + 16, true) };
}

/** Names never leave a folder: relative, with forward slashes, without `..`, and each once. */
function checkName(source: ByteSource, name: string, taken: ReadonlyMap<string, unknown>): string {
  const confined = !/[\\\0]|^\/|^[A-Za-z]:/.test(name) && !name.split('/').includes('..');
  if (name === '' || !confined) throw bad(source, `a record is named ${JSON.stringify(name)}, which leaves its folder`);
  if (taken.has(name)) throw bad(source, `record ${name} is there twice`);
  return name;
}

function decodeName(source: ByteSource, bytes: Uint8Array): string {
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    throw bad(source, 'a record name is not UTF-8');
  }
}
