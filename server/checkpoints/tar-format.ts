import { StudioError } from '../../engine/errors.ts';

/** The form of an archive as POSIX's ustar has it: a header of one block before each file, which fills whole blocks. */
export const TAR_BLOCK = 512;
/** Two empty blocks. */
export const TAR_END_BYTES = 2 * TAR_BLOCK;
/** Most bytes of a name, and of the folder before it where that has a field of its own. */
export const NAME_BYTES = 100;
const PREFIX_BYTES = 155;
const PREFIX_AT = 345;
const MAX_OCTAL_SIZE = 8 ** 11 - 1;

/** Bytes that fill the last block of a file. */
export const tarPadding = (bytes: number): number => (TAR_BLOCK - (bytes % TAR_BLOCK)) % TAR_BLOCK;

/**
 * The header of a regular file, owned by nobody, from the beginning of time: equal contents make equal archives. A size
 * beyond 8 GiB is written in base 256, as GNU's and Python's tar read it. A name of more than 100 bytes goes into two fields,
 * its folder into the second. Throws 'bad-file' for one that has no room there.
 */
export function tarHeader(name: string, bytes: number): Buffer {
  const header = Buffer.alloc(TAR_BLOCK);
  const [prefix, rest] = namesOf(name);
  header.write(rest, 0);
  header.write(prefix, PREFIX_AT);
  header.write('0000644\0', 100);
  header.write('0000000\0', 108);
  header.write('0000000\0', 116);
  if (bytes <= MAX_OCTAL_SIZE) header.write(`${bytes.toString(8).padStart(11, '0')}\0`, 124);
  else {
    header[124] = 0x80;
    header.writeBigUInt64BE(BigInt(bytes), 128);
  }
  header.write('00000000000\0', 136);
  header.write('0', 156);
  header.write('ustar\x0000', 257);
  header.write(`${checksum(header).toString(8).padStart(6, '0')}\0 `, 148);
  return header;
}

/** What stands before and after the slash that an archive leaves out; nothing before it where all fits into the name. */
function namesOf(name: string): readonly [prefix: string, rest: string] {
  if (Buffer.byteLength(name) <= NAME_BYTES) return ['', name];
  const slash = name.indexOf('/');
  const [prefix, rest] = [name.slice(0, Math.max(slash, 0)), name.slice(slash + 1)];
  if (Buffer.byteLength(prefix) > PREFIX_BYTES || Buffer.byteLength(rest) > NAME_BYTES)
    throw new StudioError(
      'bad-file',
      `The name ${name} is too long for an archive. Give the checkpoint a shorter one.`,
    );
  return [prefix, rest];
}

export interface TarHeader {
  readonly name: string;
  readonly bytes: number;
  /** '0' for a file, '5' for a folder; see POSIX for the others. */
  readonly type: string;
}

/** Reads a header block; null for an empty one. Throws 'bad-file' for what is none. */
export function readTarHeader(block: Buffer): TarHeader | null {
  if (block.every((byte) => byte === 0)) return null;
  const sum = Number.parseInt(textAt(block, 148, 8).trim(), 8);
  if (sum !== checksum(block)) throw new StudioError('bad-file', 'This is no tar archive, or a damaged one.');
  const isUstar = block.toString('latin1', 257, 262) === 'ustar';
  const prefix = isUstar && block[262] === 0 ? textAt(block, PREFIX_AT, PREFIX_BYTES) : '';
  const name = textAt(block, 0, NAME_BYTES);
  return {
    name: prefix === '' ? name : `${prefix}/${name}`,
    bytes: sizeAt(block),
    type: block[156] === 0 ? '0' : String.fromCharCode(block[156]),
  };
}

function sizeAt(block: Buffer): number {
  const size =
    block[124] === 0x80 ? Number(block.readBigUInt64BE(128)) : Number.parseInt(textAt(block, 124, 12).trim() || '0', 8);
  if (!Number.isSafeInteger(size) || size < 0) throw new StudioError('bad-file', 'The archive has a file of no size.');
  return size;
}

function textAt(block: Buffer, start: number, length: number): string {
  const field = block.subarray(start, start + length);
  const end = field.indexOf(0);
  return field.toString('utf8', 0, end < 0 ? length : end);
}

/** The sum of all bytes, those of the sum itself taken as blanks. */
function checksum(block: Buffer): number {
  let sum = 8 * 0x20;
  for (let i = 0; i < TAR_BLOCK; i++) if (i < 148 || i >= 156) sum += block[i];
  return sum;
}
