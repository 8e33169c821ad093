const REPLACEMENT = 0xfffd;

/** The offset in bytes of the first sequence that is not UTF-8, or -1. For the message of an error: decodes everything. */
export function invalidUtf8At(bytes: Uint8Array): number {
  let offset = 0;
  for (const character of new TextDecoder('utf-8', { ignoreBOM: true }).decode(bytes)) {
    const code = character.codePointAt(0)!;
    // The decoder puts U+FFFD for what it cannot read; the text may also hold one of its own, as EF BF BD.
    const own = bytes[offset] === 0xef && bytes[offset + 1] === 0xbf && bytes[offset + 2] === 0xbd;
    if (code === REPLACEMENT && !own) return offset;
    offset += code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  }
  return -1;
}
