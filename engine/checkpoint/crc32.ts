/**
 * CRC-32 as zip has it (polynomial 0xEDB88320, reflected), sixteen bytes a turn: table k advances a byte past k
 * following ones, so sixteen look-ups replace sixteen dependent steps.
 */
const SLICES = 16;
const TABLES = makeTables();

function makeTables(): Uint32Array[] {
  const tables = Array.from({ length: SLICES }, () => new Uint32Array(256));
  for (let byte = 0; byte < 256; byte++) {
    let crc = byte;
    for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0xedb88320 : crc >>> 1;
    tables[0][byte] = crc;
  }
  for (let slice = 1; slice < SLICES; slice++) {
    for (let byte = 0; byte < 256; byte++) {
      const crc = tables[slice - 1][byte];
      tables[slice][byte] = (crc >>> 8) ^ tables[0][crc & 0xff];
    }
  }
  return tables;
}

/** The CRC-32 of `bytes`, going on from `previous` (0 at the start). */
export function crc32(bytes: Uint8Array, previous = 0): number {
  const [t0, t1, t2, t3, t4, t5, t6, t7, t8, t9, t10, t11, t12, t13, t14, t15] = TABLES;
  const length = bytes.length;
  let crc = ~previous;
  let i = 0;
  for (; i + SLICES <= length; i += SLICES) {
    crc ^= bytes[i] | (bytes[i + 1] << 8) | (bytes[i + 2] << 16) | (bytes[i + 3] << 24);
    crc =
      t15[crc & 0xff] ^
      t14[(crc >>> 8) & 0xff] ^
      t13[(crc >>> 16) & 0xff] ^
      t12[crc >>> 24] ^
      t11[bytes[i + 4]] ^
      t10[bytes[i + 5]] ^
      t9[bytes[i + 6]] ^
      t8[bytes[i + 7]] ^
      t7[bytes[i + 8]] ^
      t6[bytes[i + 9]] ^
      t5[bytes[i + 10]] ^
      t4[bytes[i + 11]] ^
      t3[bytes[i + 12]] ^
      t2[bytes[i + 13]] ^
      t1[bytes[i + 14]] ^
      t0[bytes[i + 15]];
  }
  for (; i < length; i++) crc = (crc >>> 8) ^ t0[(crc ^ bytes[i]) & 0xff];
  return ~crc >>> 0;
}
